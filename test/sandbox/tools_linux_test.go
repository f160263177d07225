//go:build !race

package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMissingToolsAreNamedAtTheStart(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("PATH", folder)
	add := func(program string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, program), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	add("ip")
	err := equipped()
	if err == nil || !strings.Contains(err.Error(), "missing: nsenter, nft;") ||
		!strings.Contains(err.Error(), "apt-get install util-linux nftables") {
		t.Errorf("with ip alone: %v", err)
	}
	add("nsenter")
	add("nft")
	if err := equipped(); err != nil {
		t.Errorf("with all of them: %v", err)
	}
}
