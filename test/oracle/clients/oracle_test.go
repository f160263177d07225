//go:build oracle

package clients

import (
	"flag"
	"path/filepath"
	"testing"
)

var (
	only    = flag.String("only", "", "play only rows whose name contains this; the number of rows is then not checked")
	client  = flag.String("client", "", "play only this client; the number of rows is then not checked")
	verbose = flag.Bool("show", false, "print every reply")
)

func TestOfficialClientsPlayTheConformanceTable(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	o := options{root: root, installed: filepath.Join(root, ".cache", "oracle", "clients"), only: *only, client: *client, verbose: *verbose}
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}
