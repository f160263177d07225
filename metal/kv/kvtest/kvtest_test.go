package kvtest_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/kvtest"
)

func TestTheFakePassesTheSuite(t *testing.T) {
	kvtest.Run(t, func(*testing.T) kv.Tier { return kvtest.NewFake() })
}
