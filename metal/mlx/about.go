//go:build mlx

package mlx

// #include <stdlib.h>
// #include "bridge.h"
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"
)

// About describes the framework: its version, the default device (cpu or gpu),
// and properties of that device, such as device_name.
func (b *Backend) About() (map[string]string, error) {
	said := C.bridge_about(b.token())
	if err := fault(said.status); err != nil {
		return nil, fmt.Errorf("about: %w", err)
	}
	if said.text == nil {
		return nil, fmt.Errorf("about: %w", &Error{"out of memory for the strings"})
	}
	defer C.free(unsafe.Pointer(said.text))
	facts := map[string]string{}
	for line := range strings.Lines(C.GoString(said.text)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		facts[name] = value
	}
	return facts, nil
}

// Provoke makes the framework throw an exception, by adding arrays whose shapes
// do not fit, which all other methods refuse before they call it. It returns
// the resulting *Error. If exceptions of libmlx are not caught, the program
// ends here.
func (b *Backend) Provoke() error {
	var made []handle
	for _, n := range []C.int32_t{2, 3} {
		values := make([]C.float, n)
		m := C.bridge_floats(b.token(), unsafe.SliceData(values), &n, 1)
		if err := fault(m.status); err != nil {
			return fmt.Errorf("provoke: %w", errors.Join(err, b.free(made, true)))
		}
		made = append(made, m.array)
	}
	sum := C.bridge_add(b.token(), made[0], made[1])
	err := fault(sum.status)
	if err == nil {
		made = append(made, sum.array)
	}
	if failed := b.free(made, true); failed != nil {
		return fmt.Errorf("provoke: %w", failed)
	}
	return err
}
