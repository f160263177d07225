// Package faults has a fault for each kind of analyzer.
package faults

import (
	"fmt"
	"regexp"
)

func logf(format string, args ...any) { fmt.Printf(format, args...) }

// Log has a fault that go vet finds.
func Log() { logf("%d", "text") }

// Match has a fault that staticcheck finds.
func Match() *regexp.Regexp { return regexp.MustCompile("(") }

func unused() {}
