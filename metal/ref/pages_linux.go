package ref

import "syscall"

// hugeLeast is the smallest mapping that is worth asking for.
const hugeLeast = 4 << 20

// preferLargePages asks for pages of 2 MiB, where they fit whole into the
// mapping: weights are touched from end to end, so nothing more becomes
// resident, and first touch and look-ups cost half as much (metal/ref,
// BenchmarkPut). A kernel without them says no, and that is fine.
func preferLargePages(p []byte) {
	if len(p) >= hugeLeast {
		_ = syscall.Madvise(p, syscall.MADV_HUGEPAGE)
	}
}
