package ref_test

import (
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
)

func TestConformance(t *testing.T) {
	for _, threads := range []int{1, 2, 5} {
		t.Run(fmt.Sprintf("threads=%d", threads), func(t *testing.T) {
			tensortest.Run(t, tensortest.Suite{
				New:       func(*testing.T) tensor.Backend { return ref.New(ref.Options{Threads: threads, Poison: true}) },
				Tolerance: 1e-6,
				Bitwise:   true,
			})
		})
	}
}
