//go:build !race

package picture

import (
	"strings"
	"testing"
	"time"
)

func TestColumnsStandUnderOneAnother(t *testing.T) {
	table := Table{Indent: "  "}
	table.Row("NAME", "READY", "AGE")
	table.Row("größe", "True", "3m")
	table.Row("a-long-name", "", "")
	var b strings.Builder
	if err := table.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := "  NAME         READY  AGE\n  größe        True   3m\n  a-long-name  -      -\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestBars(t *testing.T) {
	for want, got := range map[string]string{
		"[....]   0 %": Bar(0, 10, 4), "[##..]  50 %": Bar(5, 10, 4), "[####] 100 %": Bar(10, 10, 4), "[####] 250 %": Bar(25, 10, 4), "-": Bar(1, 0, 4),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestWordsForPeople(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for want, got := range map[string]string{
		"3m12s": Age(now.Add(-192*time.Second), now), "0s": Age(now.Add(time.Second), now), "-": Age(time.Time{}, now),
		"1 Mac": Count(1, "Mac"), "2 Macs": Count(2, "Mac"), "plain": Ink(false).Bad("plain"), "\x1b[32mgood\x1b[0m": Ink(true).Good("good"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
