//go:build !race

package proc

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDroppedPagesAreGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 3<<20+5), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if cached, size, err := resident(f); err != nil || size != 3<<20+5 || cached != size {
		t.Errorf("just written: %d of %d bytes are cached, %v", cached, size, err)
	}
	if _, err := DropPages(path + "x"); err == nil {
		t.Error("pages of a missing file were dropped")
	}
	if _, err := DropPages(); err == nil {
		t.Error("pages of no file were dropped")
	}
}
