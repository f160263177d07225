//go:build stories

package system

import "metalfleet.dev/metalfleet/test/sandbox"

// enterSandbox lets the test program be the first process of a sandbox.
func enterSandbox() { sandbox.Init() }
