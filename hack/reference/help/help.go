// Package help reads what our programs print for --help.
//
// It owns the running of a program for its help, and the reading of package
// flag's format. Start reading at Of.
package help

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Of runs a program of the folder bin with --help; command is its name, and a
// subcommand if there is one.
func Of(bin string, command ...string) (string, error) {
	program, err := filepath.Abs(filepath.Join(bin, command[0]))
	if err != nil {
		return "", err
	}
	cmd := exec.Command(program, append(slices.Clone(command[1:]), "--help")...)
	cmd.Dir = "/" // defaults that depend on the folder are the same everywhere
	cmd.Env = []string{"HOME=/nonexistent", "PATH=/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", fmt.Errorf("%s --help: %w; run make build", strings.Join(command, " "), err)
	}
	return string(out), nil
}

// Flag is one that package flag lists.
type Flag struct {
	// Name without dashes, and the Placeholder of its value.
	Name, Placeholder string
	// Default, empty where there is none, and the Usage without it.
	Default, Usage string
}

var (
	flagHead    = regexp.MustCompile(`(?m)^  -([a-z][a-z0-9-]*)( [^\n\t]+)?\n?`)
	flagDefault = regexp.MustCompile(` \(default (.*)\)$`)
)

// Flags reads the help of package flag.
func Flags(help string) []Flag {
	var out []Flag
	heads := flagHead.FindAllStringSubmatchIndex(help, -1)
	for i, h := range heads {
		to := len(help)
		if i+1 < len(heads) {
			to = heads[i+1][0]
		}
		f := Flag{Name: help[h[2]:h[3]], Usage: strings.Join(strings.Fields(help[h[1]:to]), " ")}
		if h[4] >= 0 {
			f.Placeholder = strings.TrimSpace(help[h[4]:h[5]])
		}
		if m := flagDefault.FindStringSubmatch(f.Usage); m != nil {
			f.Usage, f.Default = strings.TrimSuffix(f.Usage, m[0]), m[1]
		}
		out = append(out, f)
	}
	return out
}
