package main

import (
	_ "metalfleet.dev/metalfleet/cmd/agent"
	_ "metalfleet.dev/metalfleet/test/testenv"
)
