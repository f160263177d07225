package cold_test

import (
	"context"
	"testing"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold/faultfs"
	"metalfleet.dev/metalfleet/metal/kv/kvtest"
)

func TestTheTierOnDiskPassesTheSuite(t *testing.T) {
	kvtest.Run(t, func(t *testing.T) kv.Tier {
		tier := open(t, faultfs.New(8<<20), kvtest.Room, 2*kvtest.Room)
		t.Cleanup(func() {
			if err := tier.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return tier
	})
}
