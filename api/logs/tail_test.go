package logs

import (
	"fmt"
	"strings"
	"testing"
)

func TestTheLastLinesAreKept(t *testing.T) {
	tail := NewTail(100)
	var all strings.Builder
	for i := range 1000 {
		line := fmt.Sprintf("line %d\n", i)
		all.WriteString(line)
		if n, err := tail.Write([]byte(line)); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
		if len(tail.kept) > 200 {
			t.Fatalf("%d bytes are kept", len(tail.kept))
		}
		for _, n := range []int{0, 9, 30, 100, 1000} {
			got := string(tail.Last(n))
			if len(got) > min(n, 100) || !strings.HasSuffix(all.String(), got) || got != "" && !strings.HasPrefix(got, "line ") {
				t.Fatalf("the last %d bytes are %q", n, got)
			}
			if want := min(len(all.String()), n, 100); len(got) < want-len(line) {
				t.Fatalf("of %d bytes only %d are returned", want, len(got))
			}
		}
	}
}

func TestALongLineIsCut(t *testing.T) {
	tail := NewTail(10)
	_, _ = tail.Write([]byte(strings.Repeat("x", 50) + "end\n"))
	if got := string(tail.Last(8)); got != "xxxxend\n" {
		t.Errorf("the last 8 bytes are %q", got)
	}
}
