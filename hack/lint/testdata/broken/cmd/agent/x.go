package main

import (
	_ "metalfleet.dev/metalfleet/cmd/agent/internal/flags"
	_ "metalfleet.dev/metalfleet/cmd/engine/internal/flags"
	_ "metalfleet.dev/metalfleet/test/fleet"
)
