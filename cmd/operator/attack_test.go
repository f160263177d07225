package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// TestAttackLogInjection: names from tenants and reports from Macs stay inside one quoted
// value of one line, as a message, as an error and as a value.
func TestAttackLogInjection(t *testing.T) {
	const evil = "x\ntime=2000 level=ERROR msg=forged\r\u2028\x1b[2J\x07\" key=root"
	var out bytes.Buffer
	log := newLogger(&out, true)
	log.Info(evil, "MacNode", evil, "list", []string{evil}, "struct", struct{ Message string }{Message: evil})
	log.Error(errors.New(evil), "Reconcile", "reason", evil)
	log.V(1).WithName(evil).WithValues("source", evil).Info("seen", "map", map[string]string{evil: evil})
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 3 {
		t.Errorf("%d lines for 3 records:\n%s", len(lines), out.String())
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, "time=") || strings.Contains(strings.ReplaceAll(line, `\" key=root`, ""), " key=root") {
			t.Errorf("a forged line: %q", line)
		}
		if i := strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\u2028' }); i >= 0 {
			t.Errorf("a control character in %q", line)
		}
	}
}
