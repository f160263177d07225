package sandbox

import (
	"math"

	"golang.org/x/sys/unix"
)

const (
	nativeArch       = unix.AUDIT_ARCH_AARCH64
	firstForeignCall = math.MaxUint32
)

// forks are the system calls that always make a process; clone may make a thread.
var forks = []uint32{}

// older are earlier forms of system calls that are refused.
var older = []uint32{}

// olderOpens are earlier forms of openat.
var olderOpens = []openCall{}

// olderPolls are earlier forms of ppoll.
var olderPolls = []uint32{}
