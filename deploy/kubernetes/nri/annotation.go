// SPDX-License-Identifier: GPL-2.0

package main

// Key is the annotation of a pod that names the profile of its containers.
const Key = "profile.mmpolicy.dev"

// profileFor returns the profile that the annotations of a pod ask for, for one of its
// containers, or "". What is said of the container itself goes before what is said of the pod.
func profileFor(annotations map[string]string, container string) string {
	for _, key := range []string{Key + "/container." + container, Key + "/pod", Key} {
		if profile, found := annotations[key]; found {
			return profile
		}
	}
	return ""
}
