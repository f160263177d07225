//go:build !race

package clients

import (
	"testing"

	"metalfleet.dev/metalfleet/test/oracle/clients/table"
	"metalfleet.dev/metalfleet/test/oracle/clients/tinyfleet"
)

func TestAClientThatPlaysFewerRowsThanTheTableHasFails(t *testing.T) {
	rows, err := table.Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range table.Clients() {
		n := map[bool]int{}
		for _, r := range rows {
			if r.For(c) {
				n[r.Keys]++
			}
		}
		for _, d := range []tinyfleet.Door{{}, {Keys: true}} {
			if err := enough(rows, c, d, n[d.Keys]); err != nil {
				t.Error(err)
			}
			if enough(rows, c, d, n[d.Keys]-1) == nil || enough(nil, c, d, 0) == nil {
				t.Errorf("%s may leave rows out", c.Name)
			}
		}
		if commands("", c.Name) == nil {
			t.Errorf("%s has no runner", c.Name)
		}
	}
}

func TestWhatAllClientsMustGetAlikeIsCompared(t *testing.T) {
	s := &stage{same: map[string]string{}}
	row := table.Row{Name: "r", Same: []string{"a"}}
	if err := s.alike(row, map[string]any{"a": "x"}); err != nil {
		t.Fatal(err)
	}
	if err := s.alike(row, map[string]any{"a": "x"}); err != nil {
		t.Error(err)
	}
	if s.alike(row, map[string]any{"a": "y"}) == nil {
		t.Error("another value is taken")
	}
}
