//go:build oracle

package programs

import (
	"flag"
	"path/filepath"
	"testing"
)

var (
	only  = flag.String("only", "", "run only programs whose name contains this")
	write = flag.Bool("write", false, "write what the programs say in place of comparing it")
)

func TestThirdPartyProgramsWork(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	o := options{root: root, installed: filepath.Join(root, ".cache", "oracle", "programs"), only: *only, write: *write}
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}
