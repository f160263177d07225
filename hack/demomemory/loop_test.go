package main

import (
	"strings"
	"testing"
)

func TestCommandsCanBeCopied(t *testing.T) {
	got := shown([]string{"patch", "mac", "studio", "--type=merge", "-p", `{"spec":null}`})
	if want := `patch mac studio --type=merge -p '{"spec":null}'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestWhatIsPrintedIsChecked(t *testing.T) {
	if err := wantWords("a b", "a", "b"); err != nil {
		t.Error(err)
	}
	if err := wantWords("a b", "a", "c"); err == nil || !strings.Contains(err.Error(), `"c"`) {
		t.Errorf("error %v, want one about c", err)
	}
	for freed, ok := range map[int64]bool{0: false, 94: false, 95: true, 105: true, 106: false} {
		if err := checkFreed(freed, 100); (err == nil) != ok {
			t.Errorf("%d of 100: %v", freed, err)
		}
	}
	if checkFreed(0, 0) == nil {
		t.Error("nothing was read and that is well")
	}
}
