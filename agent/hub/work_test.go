//go:build !race

package hub

import (
	"fmt"
	"strings"
	"testing"
)

// TestAttackPatternsThatTakeLong: each pattern nearly matches at each position of each path.
func TestAttackPatternsThatTakeLong(t *testing.T) {
	var files []Entry
	for i := range 100 {
		files = append(files, Entry{Path: fmt.Sprint("model", strings.Repeat("a", 480), i, ".safetensors"), Bytes: 1})
	}
	globs := []string{"*"}
	for i := range 15 {
		globs = append(globs, "*"+strings.Repeat("?", i)+strings.Repeat("a", 240-i)+"b")
	}
	if _, err := Choose(append(files, files...), globs); err == nil || !strings.Contains(err.Error(), "too many or too long patterns") {
		t.Errorf("%v", err)
	}
	files = nil
	for i := range maxEntries {
		files = append(files, Entry{Path: fmt.Sprintf("checkpoints/step-%05d/optimizer-state.bin", i), Bytes: 1})
	}
	files = append(files, Entry{Path: "model-Q8_0.gguf", Bytes: 1})
	if c, err := Choose(files, []string{"*Q8_0.gguf", "model*.safetensors", "*.json"}); err != nil || len(c.Files) != 1 {
		t.Errorf("usual patterns in the largest repository: %+v, %v", c, err)
	}
}
