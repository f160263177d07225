//go:build !race

package excerpt

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestAMessageIsShortAndValid(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"empty":               {"", ""},
		"short":               {"the file is damaged", "the file is damaged"},
		"as long as may be":   {strings.Repeat("a", MessageBytes), strings.Repeat("a", MessageBytes)},
		"one byte more":       {strings.Repeat("a", MessageBytes+1), strings.Repeat("a", MessageBytes-3) + "..."},
		"very long":           {strings.Repeat("a", 1<<20), strings.Repeat("a", MessageBytes-3) + "..."},
		"cut within a letter": {"a" + strings.Repeat("é", 1000), "a" + strings.Repeat("é", (MessageBytes-4)/2) + "..."},
		"not UTF-8":           {"a\xffb", "a?b"},
		"nothing valid":       {strings.Repeat("\xff", 2000), "..."},
	} {
		got := Message(c.in)
		if got != c.want || len(got) > MessageBytes || !utf8.ValidString(got) {
			t.Errorf("%s: %d bytes, %.40q, want %d", name, len(got), got, len(c.want))
		}
	}
}

func TestALongErrorKeepsItsKindAndNotItsText(t *testing.T) {
	long := fmt.Errorf("%s: %w", strings.Repeat("1", 1<<20), io.ErrClosedPipe)
	got := fmt.Errorf("read: %w", Error(long))
	if len(got.Error()) > MessageBytes+10 || !errors.Is(got, io.ErrClosedPipe) {
		t.Errorf("%d bytes: %.40s", len(got.Error()), got)
	}
	if Error(io.EOF) != io.EOF || Error(nil) != nil {
		t.Error("a short error was changed")
	}
}
