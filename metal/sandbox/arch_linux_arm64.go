package sandbox

import (
	"math"

	"golang.org/x/sys/unix"
)

const (
	nativeArch       = unix.AUDIT_ARCH_AARCH64
	firstForeignCall = math.MaxUint32
)
