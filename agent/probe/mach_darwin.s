// Trampolines into libSystem; see mach_darwin.go.

#include "textflag.h"

TEXT machHostSelf<>(SB),NOSPLIT,$0-0
	JMP	libc_mach_host_self(SB)
GLOBL	·machHostSelfAddress(SB), RODATA, $8
DATA	·machHostSelfAddress(SB)/8, $machHostSelf<>(SB)

TEXT hostStatistics64<>(SB),NOSPLIT,$0-0
	JMP	libc_host_statistics64(SB)
GLOBL	·hostStatistics64Address(SB), RODATA, $8
DATA	·hostStatistics64Address(SB)/8, $hostStatistics64<>(SB)

TEXT notifyRegisterCheck<>(SB),NOSPLIT,$0-0
	JMP	libc_notify_register_check(SB)
GLOBL	·notifyRegisterCheckAddress(SB), RODATA, $8
DATA	·notifyRegisterCheckAddress(SB)/8, $notifyRegisterCheck<>(SB)

TEXT notifyGetState<>(SB),NOSPLIT,$0-0
	JMP	libc_notify_get_state(SB)
GLOBL	·notifyGetStateAddress(SB), RODATA, $8
DATA	·notifyGetStateAddress(SB)/8, $notifyGetState<>(SB)
