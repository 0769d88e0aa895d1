// SPDX-License-Identifier: GPL-2.0
/*
 * Packets on a real path through page_pool: redirect IN MID OUT END ROUNDS PACKETS
 *
 * IN and MID, OUT and END are the two ends of a veth each. A round sends PACKETS frames into IN.
 * MID copies each into a page of its pool, and an XDP program redirects it to OUT. END passes it to
 * the stack, and a UDP socket on ADDRESS holds it until the round has been sent. Then all are read
 * and compared. So a pool has more pages in flight than it can take back, and refills. A veth
 * drops frames when its ring of 256 is full, so BURST of them are sent before the sender waits for
 * the socket.
 *
 * Prints the cost of a packet as JSON. Fails if a packet is lost or wrong, or comes twice. Their
 * order is free: if the sender moves to another CPU, packets may overtake earlier ones.
 */
#include <arpa/inet.h>
#include <err.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/ip.h>
#include <linux/sock_diag.h>
#include <linux/udp.h>
#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ticks.h"

#define ADDRESS		"10.9.0.2"
#define PORT		9000
#define FRAME		1514	/* the largest frame, so that each one takes a page */
#define NUMBERS		16	/* words that identify a packet */
#define KEY		2654435761u
#define KEY_INVERSE	244002641u	/* KEY * KEY_INVERSE is 1 modulo 2^32 */
#define BUFFER		(256 << 20)
#define BURST		100
#define PATIENCE	20	/* seconds to wait for packets */

struct headers {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
} __attribute__((packed));

struct frame {
	struct headers h;
	uint32_t numbers[NUMBERS];
	char rest[FRAME - sizeof(struct headers) - NUMBERS * sizeof(uint32_t)];
} __attribute__((packed));

#define PAYLOAD		(FRAME - sizeof(struct headers))

static int bpf(int command, union bpf_attr *attr)
{
	int result = syscall(SYS_bpf, command, attr, sizeof(*attr));

	if (result < 0)
		err(1, "bpf(%d)", command);
	return result;
}

static unsigned int index_of(const char *name)
{
	unsigned int index = if_nametoindex(name);

	if (!index)
		err(1, "%s", name);
	return index;
}

/* Attaches an XDP program to an interface. It stays attached until this process ends. */
static void attach(const char *name, const struct bpf_insn *insns, unsigned int nr)
{
	union bpf_attr load = {
		.prog_type = BPF_PROG_TYPE_XDP,
		.insns = (uintptr_t)insns,
		.insn_cnt = nr,
		.license = (uintptr_t)"GPL",
	};
	union bpf_attr link = {
		.link_create = { .target_ifindex = index_of(name), .attach_type = BPF_XDP },
	};

	link.link_create.prog_fd = bpf(BPF_PROG_LOAD, &load);
	bpf(BPF_LINK_CREATE, &link);
}

#define SET(reg, value)	{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = (reg), .imm = (value) }
#define CALL(function)	{ .code = BPF_JMP | BPF_CALL, .imm = (function) }
#define EXIT		{ .code = BPF_JMP | BPF_EXIT }

static void attach_redirect(const char *name, const char *target)
{
	const struct bpf_insn insns[] = {
		SET(BPF_REG_1, index_of(target)), SET(BPF_REG_2, 0),
		CALL(BPF_FUNC_redirect), EXIT,
	};

	attach(name, insns, sizeof(insns) / sizeof(*insns));
}

static void attach_pass(const char *name)
{
	const struct bpf_insn insns[] = { SET(BPF_REG_0, XDP_PASS), EXIT };

	attach(name, insns, sizeof(insns) / sizeof(*insns));
}

static int sender(const char *name)
{
	struct sockaddr_ll to = {
		.sll_family = AF_PACKET,
		.sll_ifindex = index_of(name),
	};
	int fd = socket(AF_PACKET, SOCK_RAW, 0), size = BUFFER;

	if (fd < 0 || bind(fd, (void *)&to, sizeof(to)) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)))
		err(1, "packet socket on %s", name);
	return fd;
}

static int receiver(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int fd = socket(AF_INET, SOCK_DGRAM, 0), size = BUFFER;

	inet_pton(AF_INET, ADDRESS, &at.sin_addr);
	if (fd < 0 || bind(fd, (void *)&at, sizeof(at)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)))
		err(1, "socket on %s", ADDRESS);
	return fd;
}

static uint16_t checksum(const void *data, unsigned int bytes)
{
	const uint16_t *words = data;
	uint32_t sum = 0;

	for (; bytes; bytes -= 2)
		sum += *words++;
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

/* Fills in the headers of a frame that is for the interface END. */
static void address(struct frame *frame, const char *end)
{
	struct iphdr ip = {
		.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP,
		.tot_len = htons(sizeof(*frame) - ETH_HLEN),
	};
	struct ifreq request = {};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	strncpy(request.ifr_name, end, IFNAMSIZ - 1);
	if (ioctl(fd, SIOCGIFHWADDR, &request))
		err(1, "%s", end);
	close(fd);
	memcpy(frame->h.eth.h_dest, request.ifr_hwaddr.sa_data, ETH_ALEN);
	frame->h.eth.h_source[0] = 2;
	frame->h.eth.h_proto = htons(ETH_P_IP);
	inet_pton(AF_INET, "10.9.0.1", &ip.saddr);
	inet_pton(AF_INET, ADDRESS, &ip.daddr);
	ip.check = checksum(&ip, sizeof(ip));
	frame->h.ip = ip;
	frame->h.udp.source = htons(PORT);
	frame->h.udp.dest = htons(PORT);
	frame->h.udp.len = htons(sizeof(frame->h.udp) + PAYLOAD);
}

static uint32_t number(uint32_t packet, unsigned int i)
{
	return packet * KEY + i;
}

static void send_one(int fd, struct frame *frame, uint32_t packet)
{
	unsigned int i;

	for (i = 0; i < NUMBERS; i++)
		frame->numbers[i] = number(packet, i);
	if (send(fd, frame, sizeof(*frame), 0) != sizeof(*frame))
		err(1, "send");
}

/* Returns the memory in bytes that the packets held by a socket take. */
static uint32_t held(int fd)
{
	uint32_t info[SK_MEMINFO_VARS];
	socklen_t size = sizeof(info);

	if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &size))
		err(1, "SO_MEMINFO");
	return info[SK_MEMINFO_RMEM_ALLOC];
}

static void wait_for(int fd, uint32_t bytes)
{
	unsigned int waited;

	for (waited = 0; held(fd) < bytes; waited++) {
		if (waited == PATIENCE * 1000)
			errx(1, "the socket holds %u bytes of %u", held(fd), bytes);
		usleep(1000);
	}
}

/* Sends a round of packets. The first one shows how much memory each takes in the socket. */
static void send_round(int fd, int out, struct frame *frame, uint32_t first, uint32_t packets)
{
	const uint32_t before = held(out);
	uint32_t i, each = 0;

	for (i = 0; i < packets; i++) {
		send_one(fd, frame, first + i);
		if (!each) {
			wait_for(out, before + 1);
			each = held(out) - before;
		}
		if (i % BURST == BURST - 1)
			wait_for(out, before + (i + 1) * each);
	}
}

static void receive_round(int fd, uint32_t first, uint32_t packets)
{
	uint32_t numbers[PAYLOAD / sizeof(uint32_t) + 1], got, packet;
	bool *seen = calloc(packets, sizeof(*seen));
	unsigned int i;

	if (!seen)
		err(1, "calloc");
	for (got = 0; got < packets; got++) {
		if (recv(fd, numbers, sizeof(numbers), 0) != PAYLOAD)
			err(1, "of the packets from %u on, only %u came", first, got);
		packet = numbers[0] * KEY_INVERSE;
		if (packet - first >= packets)
			errx(1, "a packet of another round, or a wrong one: %u", packet);
		if (seen[packet - first])
			errx(1, "packet %u comes twice", packet);
		seen[packet - first] = true;
		for (i = 0; i < NUMBERS; i++)
			if (numbers[i] != number(packet, i))
				errx(1, "packet %u is wrong", packet);
	}
	free(seen);
}

int main(int argc, char **argv)
{
	const struct timeval patience = { .tv_sec = PATIENCE };
	uint32_t rounds, packets, round;
	struct frame frame = {};
	uint64_t begin;
	int in, out;

	if (argc != 7)
		errx(2, "usage: redirect IN MID OUT END ROUNDS PACKETS");
	rounds = atoi(argv[5]);
	packets = atoi(argv[6]);
	attach_redirect(argv[2], argv[3]);
	attach_pass(argv[4]);
	in = sender(argv[1]);
	out = receiver();
	setsockopt(out, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	address(&frame, argv[4]);
	begin = ticks_now();
	for (round = 0; round < rounds; round++) {
		send_round(in, out, &frame, round * packets, packets);
		receive_round(out, round * packets, packets);
	}
	printf("{\"packets\": %u, \"ticks\": %llu}\n", rounds * packets,
	       (unsigned long long)(ticks_now() - begin));
	return 0;
}
