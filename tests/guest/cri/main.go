// SPDX-License-Identifier: GPL-2.0

// A client of a container runtime for the tests. Each line of input is a call of the runtime's CRI:
// the method, and the request as JSON. Each line of output is the answer as JSON, or an object with
// "error".
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"
	"reflect"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func call(service reflect.Value, method, text string) (any, error) {
	function := service.MethodByName(method)
	request := reflect.New(function.Type().In(1).Elem())
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(request.Interface()); err != nil {
		return nil, err
	}
	done := function.Call([]reflect.Value{reflect.ValueOf(context.Background()), request})
	err, _ := done[1].Interface().(error)
	return done[0].Interface(), err
}

func main() {
	runtime, err := grpc.NewClient("unix://"+os.Args[1],
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	service := reflect.ValueOf(cri.NewRuntimeServiceClient(runtime))
	output := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		method, text, _ := strings.Cut(lines.Text(), " ")
		answer, err := call(service, method, text)
		if err != nil {
			answer = map[string]string{"error": err.Error()}
		}
		if err := output.Encode(answer); err != nil {
			log.Fatal(err)
		}
	}
}
