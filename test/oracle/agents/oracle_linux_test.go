//go:build oracle

package agents

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/test/sandbox"
)

var (
	only = flag.String("only", "", "play only programs whose name contains this")
	envs = flag.String("envs", "aider sdks js", "play only programs that are installed in these folders")
	show = flag.Bool("show", false, "print every request and response")
)

func TestMain(m *testing.M) {
	sandbox.Init()
	os.Exit(m.Run())
}

func TestCodingAgentsFixAFailingTest(t *testing.T) {
	if !sandbox.Enter(t) {
		return
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	o := options{root: root, installed: filepath.Join(root, ".cache", "oracle", "agents"), only: *only, envs: strings.Fields(*envs), show: *show}
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}
