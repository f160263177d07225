// Trampolines into libSystem; see mach_darwin.go.

#include "textflag.h"

TEXT libc_mach_host_self_trampoline<>(SB),NOSPLIT,$0-0
	JMP	libc_mach_host_self(SB)
GLOBL	·libc_mach_host_self_trampoline_addr(SB), RODATA, $8
DATA	·libc_mach_host_self_trampoline_addr(SB)/8, $libc_mach_host_self_trampoline<>(SB)

TEXT libc_host_statistics64_trampoline<>(SB),NOSPLIT,$0-0
	JMP	libc_host_statistics64(SB)
GLOBL	·libc_host_statistics64_trampoline_addr(SB), RODATA, $8
DATA	·libc_host_statistics64_trampoline_addr(SB)/8, $libc_host_statistics64_trampoline<>(SB)

TEXT libc_notify_register_check_trampoline<>(SB),NOSPLIT,$0-0
	JMP	libc_notify_register_check(SB)
GLOBL	·libc_notify_register_check_trampoline_addr(SB), RODATA, $8
DATA	·libc_notify_register_check_trampoline_addr(SB)/8, $libc_notify_register_check_trampoline<>(SB)

TEXT libc_notify_get_state_trampoline<>(SB),NOSPLIT,$0-0
	JMP	libc_notify_get_state(SB)
GLOBL	·libc_notify_get_state_trampoline_addr(SB), RODATA, $8
DATA	·libc_notify_get_state_trampoline_addr(SB)/8, $libc_notify_get_state_trampoline<>(SB)
