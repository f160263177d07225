package ref_test

import (
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
	"metalfleet.dev/metalfleet/test/race"
)

func TestConformance(t *testing.T) {
	numbers := []int{1, 2, 5}
	if race.Enabled {
		numbers = []int{3}
	}
	for _, threads := range numbers {
		t.Run(fmt.Sprintf("threads=%d", threads), func(t *testing.T) {
			tensortest.Run(t, tensortest.Suite{
				New:       func(*testing.T) tensor.Backend { return ref.New(ref.Options{Threads: threads, Poison: true}) },
				Tolerance: 1e-6,
				Bitwise:   true,
			})
		})
	}
}
