//go:build !race

package docs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"

	"metalfleet.dev/metalfleet/hack/reference/help"
	"metalfleet.dev/metalfleet/test/testenv"
)

// others are programs that are not ours, whose flags nothing here can check.
var others = []string{
	"aws", "base64", "brew", "cat", "cd", "command", "curl", "cut", "dlv", "docker", "echo", "export", "git", "launchctl", "ln", "mkdir", "oras", "otool", "printf",
	"date", "sed", "sha256sum", "shasum", "skopeo", "tar", "test", "[", "umask", "xcode-select", "kustomize", "source", "python3", "pip",
}

// helmFlags are those that the pages use; the end-to-end test executes them.
var helmFlags = []string{"-n", "--namespace", "--create-namespace", "--wait", "--timeout", "--set", "--values", "--reuse-values"}

// checker knows the real programs.
type checker struct {
	bin, kubectl string
	helps        map[string]string // by command line
	values       map[string]bool   // of the chart, by path
	script       string            // config/macos/install.sh
}

func newChecker(t *testing.T) *checker {
	t.Helper()
	assets, err := testenv.AssetsDir()
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(filepath.Join(root, "config", "macos", "install.sh"))
	if err != nil {
		t.Fatal(err)
	}
	return &checker{bin: filepath.Join(root, "bin"), kubectl: filepath.Join(assets, "kubectl"), helps: map[string]string{}, values: helmValues(t), script: string(script)}
}

// TestCommandsNameRealFlags, in blocks and in sentences.
func TestCommandsNameRealFlags(t *testing.T) {
	c := newChecker(t)
	checked := 0
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if b.Language != "sh" {
				continue
			}
			n, err := c.lines(b.Text)
			if err != nil {
				t.Errorf("%s:%d: %v", d.path, b.Line, err)
			}
			checked += n
		}
		for _, s := range spans(d.text) {
			if !ours.MatchString(s.text) || strings.Contains(d.path, "reference/cli.md") {
				continue // that page is made of the programs' help
			}
			n, err := c.lines(s.text)
			if err != nil {
				t.Errorf("%s:%d: `%s`: %v", d.path, s.line, s.text, err)
			}
			checked += n
		}
	}
	if checked < 100 {
		t.Errorf("only %d commands were found", checked)
	}
}

// ours are sentences' commands that can be checked.
var ours = regexp.MustCompile(`^(kubectl|agent|gateway|operator|engine|helm) (-|[a-z])`)

// span is code in a sentence.
type span struct {
	line int
	text string
}

var code = regexp.MustCompile("`([^`\n]+)`")

// spans of code outside of blocks.
func spans(text string) []span {
	var out []span
	inside, n := false, 0
	for line := range strings.Lines(text) {
		n++
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inside = !inside
			continue
		}
		if inside {
			continue
		}
		for _, m := range code.FindAllStringSubmatch(line, -1) {
			out = append(out, span{line: n, text: m[1]})
		}
	}
	return out
}

// lines checks every command of a script, and counts them.
func (c *checker) lines(text string) (int, error) {
	file, err := syntax.NewParser().Parse(strings.NewReader(text), "")
	if err != nil {
		return 0, fmt.Errorf("the shell cannot read it: %w", err)
	}
	n := 0
	var wrong []error
	syntax.Walk(file, func(node syntax.Node) bool {
		call, ok := node.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		var words []string
		for _, w := range call.Args {
			words = append(words, literal(w.Parts))
		}
		n++
		wrong = append(wrong, c.command(words))
		return true
	})
	return n, errors.Join(wrong...)
}

// literal is a word as the shell passes it on, with X for what it expands.
func literal(parts []syntax.WordPart) string {
	var out strings.Builder
	for _, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			out.WriteString(strings.ReplaceAll(p.Value, `\`, ""))
		case *syntax.SglQuoted:
			out.WriteString(p.Value)
		case *syntax.DblQuoted:
			out.WriteString(literal(p.Parts))
		default:
			out.WriteString("X")
		}
	}
	return out.String()
}

// command checks one command line.
func (c *checker) command(words []string) error {
	program := filepath.Base(words[0])
	switch {
	case program == "sudo":
		return c.command(words[1:])
	case program == "kubectl" && len(words) > 1 && words[1] == "metalfleet":
		return c.plugin(words[2:])
	case program == "kubectl-metalfleet":
		return c.plugin(words[1:])
	case program == "kubectl":
		return c.kube(words[1:])
	case program == "helm":
		return c.helm(words[1:])
	case slices.Contains([]string{"agent", "gateway", "operator", "engine"}, program):
		return c.program(program, words[1:])
	case program == "bash" || program == "sh":
		return c.shell(words[1:])
	case program == "go":
		return packages(words[1:])
	case program == "make":
		return nil // the test of package docs compares targets
	case slices.Contains(others, program):
		return nil
	}
	return fmt.Errorf("%s is no program that the test knows; correct it, or add it to the list of others", program)
}

// program is one of ours that uses package flag.
func (c *checker) program(name string, words []string) error {
	command := []string{name}
	if len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		command = append(command, words[0])
		words = words[1:]
	}
	text, err := c.help(command...)
	if err != nil {
		return err
	}
	if len(command) == 2 && command[1] != "run" && !strings.Contains(text, "Usage of "+strings.Join(command, " ")+":") {
		return fmt.Errorf("%s has no command %s", name, command[1])
	}
	known := map[string]bool{"help": true, "version": true}
	for _, f := range help.Flags(text) {
		known[f.Name] = true
	}
	for _, f := range flagsOf(words) {
		if !known[strings.TrimLeft(f, "-")] {
			return fmt.Errorf("%s has no flag %s", strings.Join(command, " "), f)
		}
	}
	return nil
}

func (c *checker) help(command ...string) (string, error) {
	line := strings.Join(command, " ")
	if text, ok := c.helps[line]; ok {
		return text, nil
	}
	text, err := help.Of(c.bin, command...)
	c.helps[line] = text
	return text, err
}

// flagsOf are the names of the flags of a command line, up to a bare --.
func flagsOf(words []string) []string {
	var out []string
	for _, w := range words {
		if w == "--" {
			break
		}
		if strings.HasPrefix(w, "-") && w != "-" {
			name, _, _ := strings.Cut(w, "=")
			out = append(out, name)
		}
	}
	return out
}

// plugin checks a command of kubectl metalfleet.
func (c *checker) plugin(words []string) error {
	command := []string{"kubectl-metalfleet"}
	for len(words) > 0 && !strings.HasPrefix(words[0], "-") && len(command) < 3 {
		if len(command) == 2 && !slices.Contains([]string{"completion", "enrolment", "rollout"}, command[1]) {
			break
		}
		command = append(command, words[0])
		words = words[1:]
	}
	text, err := c.help(command...)
	if err != nil {
		return err
	}
	usage := "kubectl metalfleet " + strings.Join(command[1:], " ")
	if len(command) > 1 && !strings.Contains(text, strings.TrimSpace(usage)) {
		return fmt.Errorf("there is no %s", usage)
	}
	return listed(usage, text, words)
}

// listed wants each flag in a help text of cobra.
func listed(command, text string, words []string) error {
	for _, f := range flagsOf(words) {
		if !regexp.MustCompile(`(?m)^ +(-[a-zA-Z], )?` + regexp.QuoteMeta(f) + `\b|^ +` + regexp.QuoteMeta(f) + `, `).MatchString(text) {
			return fmt.Errorf("%s has no flag %s", command, f)
		}
	}
	return nil
}

// kube checks a command of kubectl.
func (c *checker) kube(words []string) error {
	var command []string
	flags := words
	for i := 0; i < len(words) && len(command) < 3; i++ {
		switch w := words[i]; {
		case slices.Contains([]string{"-n", "--namespace", "--kubeconfig", "--context"}, w):
			i++ // its value
		case strings.HasPrefix(w, "-"):
		default:
			command = append(command, w)
		}
	}
	for i, w := range words {
		if w == "--" && i+1 < len(words) {
			if err := c.command(words[i+1:]); err != nil {
				return err
			}
		}
	}
	// kubectl prints the help of the deepest command that it knows, and ignores the rest: most have none under them.
	text, err := c.kubectlHelp(append(slices.Clone(command[:min(1, len(command))]), "--help")...)
	if err == nil && strings.Contains(text, "Available Commands:") {
		text, err = c.kubectlHelp(append(command, "--help")...)
	}
	if err != nil {
		return err
	}
	options, err := c.kubectlHelp("options")
	if err != nil {
		return err
	}
	if len(command) > 0 && !strings.Contains(text, "kubectl "+command[0]) {
		return fmt.Errorf("kubectl has no command %s", command[0])
	}
	return listed("kubectl "+strings.Join(command, " "), text+options, flags)
}

func (c *checker) kubectlHelp(args ...string) (string, error) {
	line := "kubectl " + strings.Join(args, " ")
	if text, ok := c.helps[line]; ok {
		return text, nil
	}
	out, err := exec.Command(c.kubectl, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", line, err, out)
	}
	c.helps[line] = string(out)
	return string(out), nil
}

// helm checks flags, and that values which are set exist.
func (c *checker) helm(words []string) error {
	for _, f := range flagsOf(words) {
		if !slices.Contains(helmFlags, f) {
			return fmt.Errorf("helm's flag %s is used by no test; correct it, or add it to helmFlags", f)
		}
	}
	for i, w := range words {
		if w != "--set" || i+1 == len(words) {
			continue
		}
		if path, _, _ := strings.Cut(words[i+1], "="); !c.values[path] {
			return fmt.Errorf("the chart has no value %s", path)
		}
	}
	return nil
}

// packages checks that the folders which the go command is given exist.
func packages(words []string) error {
	for _, w := range words {
		if strings.HasPrefix(w, "./") {
			if _, err := os.Stat(filepath.Join(root, strings.TrimSuffix(w, "/..."))); err != nil {
				return err
			}
		}
	}
	return nil
}

// shell checks a script of ours that is run by bash or sh.
func (c *checker) shell(words []string) error {
	if len(words) == 0 {
		return nil
	}
	name, words := words[0], words[1:]
	switch filepath.Base(name) {
	case "install.sh":
		for _, f := range flagsOf(words) {
			if f == "--tunnel" {
				f = "--agent-flag" // its value
			}
			if !regexp.MustCompile(`[ |(]` + regexp.QuoteMeta(f) + `(\)| \|)`).MatchString(c.script) {
				return fmt.Errorf("install.sh has no flag %s", f)
			}
		}
		return nil
	case "selftest.sh":
		return nil // part of a Mac's archive
	}
	_, err := os.Stat(filepath.Join(root, name))
	return err
}
