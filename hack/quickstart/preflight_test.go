//go:build !race

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// preflight runs preflight.sh with a Go of the given version, and with shell functions that
// replace its measurements.
func preflight(t *testing.T, version, port, replaced string, env ...string) (string, bool) {
	t.Helper()
	bin := t.TempDir()
	fake := fmt.Sprintf("#!/bin/bash\n[ \"$2\" = GOVERSION ] && echo %q || echo %q\n", version, bin)
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-c", ". ./preflight.sh\n"+replaced+"\npreflight "+port)
	cmd.Env = append(os.Environ(), append([]string{"PATH=" + bin + ":" + os.Getenv("PATH"), "KUBEBUILDER_ASSETS="}, env...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

const roomy = "free_disk() { echo 99999; }\nfree_memory() { echo 99999; }"

func TestPreflightNamesEachProblemWithItsFix(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	for name, test := range map[string]struct {
		version, port, replaced, env string
		want                         []string // none: it passes
	}{
		"a good machine":         {version: "go1.26.8", port: "0", replaced: roomy, want: nil},
		"a newer Go":             {version: "go1.30", port: "0", replaced: roomy, want: nil},
		"a release candidate":    {version: "go1.26rc1", port: "0", replaced: roomy, want: nil},
		"unknown room is fine":   {version: "go1.26.0", port: "0", replaced: "free_disk() { :; }\nfree_memory() { :; }", want: nil},
		"an old Go":              {version: "go1.25.9", port: "0", replaced: roomy, want: []string{"Go is go1.25.9", "https://go.dev/dl"}},
		"no disk":                {version: "go1.26.0", port: "0", replaced: roomy + "\nfree_disk() { echo 12; }", want: []string{"12 MiB", "go clean -cache"}},
		"no memory":              {version: "go1.26.0", port: "0", replaced: roomy + "\nfree_memory() { echo 34; }", want: []string{"34 MiB of memory", "close"}},
		"a port that is taken":   {version: "go1.26.0", port: port, replaced: roomy, want: []string{"port " + port, "PORT="}},
		"a port that is a word":  {version: "go1.26.0", port: "http", replaced: roomy, want: []string{"PORT=http is not a port"}},
		"room to fetch":          {version: "go1.26.0", port: "0", replaced: "free_disk() { echo 2000; }\nfree_memory() { echo 2000; }", env: "KUBE_MIRROR=", want: nil},
		"no room to fetch":       {version: "go1.26.0", port: "0", replaced: "free_disk() { echo 1200; }\nfree_memory() { echo 2000; }", env: "KUBE_MIRROR=", want: []string{"1200 MiB free", "1500 MiB are required"}},
		"no room to compile":     {version: "go1.26.0", port: "0", replaced: "free_disk() { echo 2000; }\nfree_memory() { echo 2000; }", env: "KUBE_MIRROR=none", want: []string{"2 problem(s)", "8000 MiB are required", "4000 MiB are required"}},
		"assets without kubectl": {version: "go1.26.0", port: "0", replaced: roomy, env: "KUBEBUILDER_ASSETS=/nowhere", want: []string{"no program kubectl", "unset it"}},
		"two at once":            {version: "go1.25.9", port: port, replaced: roomy, want: []string{"2 problem(s)", "Go is go1.25.9", "port " + port}},
	} {
		t.Run(name, func(t *testing.T) {
			out, ok := preflight(t, test.version, test.port, test.replaced, test.env)
			if ok != (len(test.want) == 0) {
				t.Fatalf("passed: %v; it said:\n%s", ok, out)
			}
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("it did not say %q:\n%s", want, out)
				}
			}
		})
	}
}
