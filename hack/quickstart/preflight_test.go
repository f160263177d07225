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

// preflight runs preflight.sh with a Go of the given version, and with lines of
// shell that replace what it measures.
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
		"a good machine":         {"go1.26.8", "0", roomy, "", nil},
		"a newer Go":             {"go1.30", "0", roomy, "", nil},
		"a release candidate":    {"go1.26rc1", "0", roomy, "", nil},
		"unknown room is fine":   {"go1.26.0", "0", "free_disk() { :; }\nfree_memory() { :; }", "", nil},
		"an old Go":              {"go1.25.9", "0", roomy, "", []string{"Go is go1.25.9", "https://go.dev/dl"}},
		"no disk":                {"go1.26.0", "0", roomy + "\nfree_disk() { echo 12; }", "", []string{"12 MiB", "go clean -cache"}},
		"no memory":              {"go1.26.0", "0", roomy + "\nfree_memory() { echo 34; }", "", []string{"34 MiB of memory", "close"}},
		"a port that is taken":   {"go1.26.0", port, roomy, "", []string{"port " + port, "PORT="}},
		"a port that is a word":  {"go1.26.0", "http", roomy, "", []string{"PORT=http is not a port"}},
		"room to fetch":          {"go1.26.0", "0", "free_disk() { echo 2000; }\nfree_memory() { echo 2000; }", "KUBE_MIRROR=", nil},
		"no room to fetch":       {"go1.26.0", "0", "free_disk() { echo 1200; }\nfree_memory() { echo 2000; }", "KUBE_MIRROR=", []string{"1200 MiB free", "1500 MiB are required"}},
		"no room to compile":     {"go1.26.0", "0", "free_disk() { echo 2000; }\nfree_memory() { echo 2000; }", "KUBE_MIRROR=none", []string{"2 problem(s)", "8000 MiB are required", "4000 MiB are required"}},
		"assets without kubectl": {"go1.26.0", "0", roomy, "KUBEBUILDER_ASSETS=/nowhere", []string{"no program kubectl", "unset it"}},
		"two at once":            {"go1.25.9", port, roomy, "", []string{"2 problem(s)", "Go is go1.25.9", "port " + port}},
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
