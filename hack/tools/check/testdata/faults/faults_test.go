package faults

import (
	"fmt"
	"testing"
)

func TestLog(t *testing.T) { t.Log(fmt.Sprintf("%s", 1)) }
