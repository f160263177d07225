//go:build mlx

package mlx

/*
#cgo linux LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>

// The CUDA driver's own, of a library that the framework has loaded by then.
static struct {
	int (*context)(void **, int);
	int (*enter)(void *);
	int (*pin)(void *, size_t, unsigned);
	int (*unpin)(void *);
	void *of;
} driver;

// Says whether there is a driver, and enters its context. It is called once.
static int driver_found(void) {
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (library == NULL) {
		return 0;
	}
	driver.context = (int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain");
	driver.enter = (int (*)(void *))dlsym(library, "cuCtxSetCurrent");
	driver.pin = (int (*)(void *, size_t, unsigned))dlsym(library, "cuMemHostRegister_v2");
	driver.unpin = (int (*)(void *))dlsym(library, "cuMemHostUnregister");
	return driver.context && driver.enter && driver.pin && driver.unpin && driver.context(&driver.of, 0) == 0;
}

static int driver_pin(void *memory, size_t bytes) {
	const unsigned by_every_context = 1;
	return driver.enter(driver.of) == 0 && driver.pin(memory, bytes, by_every_context) == 0;
}

static void driver_unpin(void *memory) {
	if (driver.enter(driver.of) == 0) {
		driver.unpin(memory);
	}
}
*/
import "C"

import (
	"sync"
	"unsafe"
)

// driver says whether CUDA's driver is there. What it pins, it pins for the
// framework's context, from any thread; nothing of the framework is called.
var driver = sync.OnceValue(func() bool { return C.driver_found() != 0 })

// Apart implements tensor.Pinner: a Mac's memory is one, and so is a processor's.
func (b *Backend) Apart() bool { return b.cuda.Load() }

// Pin implements tensor.Pinner on CUDA, whose driver copies pageable memory
// through pages of its own (H100: a block of 38 MB in 3.2 ms to the host and 5.4
// to the device; in 0.7 each where it is pinned). Launches wait for it: 11 ms and
// more were seen where the memory was not resident; where it is, pinning takes 2.
// Memory that host and device share, as a Mac's, is not pinned.
func (b *Backend) Pin(memory []byte) (unpin func()) {
	at := unsafe.Pointer(unsafe.SliceData(memory))
	if !b.cuda.Load() || len(memory) == 0 || !driver() || C.driver_pin(at, C.size_t(len(memory))) == 0 {
		return nil
	}
	return func() { C.driver_unpin(at) }
}
