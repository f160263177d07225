package main

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// commands lists the flags of the daemons in full, and of the other commands
// what they do and their flags' names.
func commands(root string) (string, error) {
	var b strings.Builder
	for _, daemon := range [][]string{{"operator"}, {"gateway"}, {"gateway", "new-key"}, {"gateway", "check"}, {"agent"}, {"agent", "join"}} {
		help, err := helpOf(root, daemon...)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "\n## %s\n\n", strings.Join(daemon, " "))
		for _, f := range goFlags(help) {
			fmt.Fprintf(&b, "- `--%s`%s: %s.\n", f.name, f.fallback, strings.TrimSuffix(f.usage, "."))
		}
	}
	for _, write := range []func(string) (string, error){engineCommands, pluginCommands} {
		text, err := write(root)
		if err != nil {
			return "", err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// helpOf runs a program with --help.
func helpOf(root string, command ...string) (string, error) {
	cmd := exec.Command(filepath.Join(root, "bin", command[0]), append(slices.Clone(command[1:]), "--help")...)
	cmd.Dir = "/" // so that defaults that depend on the folder are the same everywhere
	abs, err := filepath.Abs(cmd.Path)
	if err != nil {
		return "", err
	}
	cmd.Path, cmd.Args[0] = abs, command[0]
	cmd.Env = []string{"HOME=/nonexistent", "PATH=/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", fmt.Errorf("%s --help: %w; run make build", strings.Join(command, " "), err)
	}
	return string(out), nil
}

// goFlag is one flag as package flag prints it.
type goFlag struct{ name, fallback, usage string }

var (
	flagHead    = regexp.MustCompile(`(?m)^  -([a-z][a-z0-9-]*)( [^\n\t]+)?\n?`)
	flagDefault = regexp.MustCompile(` \(default (.*)\)$`)
	ownFolder   = regexp.MustCompile(`"?/[^" ]*/bin/([a-z]+)"?`)
)

// goFlags reads the help of package flag.
func goFlags(help string) []goFlag {
	var out []goFlag
	heads := flagHead.FindAllStringSubmatchIndex(help, -1)
	for i, h := range heads {
		to := len(help)
		if i+1 < len(heads) {
			to = heads[i+1][0]
		}
		f := goFlag{name: help[h[2]:h[3]], usage: strings.Join(strings.Fields(help[h[1]:to]), " ")}
		if h[4] >= 0 {
			f.name += " " + placeholder(strings.TrimSpace(help[h[4]:h[5]]))
		}
		if m := flagDefault.FindStringSubmatch(f.usage); m != nil {
			f.usage = strings.TrimSuffix(f.usage, m[0])
			f.fallback = " (" + ownFolder.ReplaceAllString(m[1], "$1 next to the agent") + ")"
		}
		out = append(out, f)
	}
	return out
}

// placeholder is what stands for a flag's value.
func placeholder(word string) string {
	if strings.Contains(word, "=") {
		return word
	}
	return strings.ToUpper(word)
}

var engineLine = regexp.MustCompile(`(?m)^  ([a-z]+) +(.+)$`)

func engineCommands(root string) (string, error) {
	help, err := helpOf(root, "engine")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("\n## engine\n\n")
	all := engineLine.FindAllStringSubmatch(help, -1)
	if len(all) < 10 {
		return "", fmt.Errorf("engine --help lists %d commands:\n%s", len(all), help)
	}
	for _, m := range all {
		own, err := helpOf(root, "engine", m[1])
		if err != nil {
			return "", err
		}
		var names []string
		for _, f := range goFlags(own) {
			name, _, _ := strings.Cut(f.name, " ")
			names = append(names, "`--"+name+"`")
		}
		fmt.Fprintf(&b, "- `engine %s`: %s. %s.\n", m[1], m[2], strings.Join(names, ", "))
	}
	return b.String(), nil
}

var (
	pluginLine = regexp.MustCompile(`(?m)^  ([a-z][a-z-]+) +(.+)$`)
	pluginFlag = regexp.MustCompile(`(?m)^ +(?:-([a-z]), )?--([a-z][a-z0-9-]*)`)
	usageLine  = regexp.MustCompile(`(?m)^  (kubectl metalfleet .+?)(?: \[flags\])?$`)
)

// pluginCommands lists the commands of the kubectl plugin, one level deep.
func pluginCommands(root string) (string, error) {
	var b strings.Builder
	b.WriteString("\n## kubectl metalfleet\n\n")
	for _, group := range [][]string{nil, {"rollout"}} {
		help, err := helpOf(root, append([]string{"kubectl-metalfleet"}, group...)...)
		if err != nil {
			return "", err
		}
		_, list, found := strings.Cut(help, "Available Commands:\n")
		list, _, ended := strings.Cut(list, "\n\n")
		if !found || !ended {
			return "", fmt.Errorf("kubectl-metalfleet --help lists no commands:\n%s", help)
		}
		for _, m := range pluginLine.FindAllStringSubmatch(list, -1) {
			if slices.Contains([]string{"help", "completion", "rollout"}, m[1]) {
				continue
			}
			line, err := pluginCommand(root, append(slices.Clone(group), m[1]), m[2])
			if err != nil {
				return "", err
			}
			b.WriteString(line)
		}
	}
	return b.String(), nil
}

func pluginCommand(root string, command []string, about string) (string, error) {
	help, err := helpOf(root, append([]string{"kubectl-metalfleet"}, command...)...)
	if err != nil {
		return "", err
	}
	usage := usageLine.FindStringSubmatch(help)
	_, flags, _ := strings.Cut(help, "\nFlags:\n")
	flags, _, _ = strings.Cut(flags, "\n\n")
	if usage == nil || flags == "" {
		return "", fmt.Errorf("%q has no usage or no flags:\n%s", command, help)
	}
	var names []string
	for _, m := range pluginFlag.FindAllStringSubmatch(flags, -1) {
		switch {
		case m[2] == "help" || m[2] == "output": // the page's head has these
		case m[1] != "":
			names = append(names, "`-"+m[1]+"`, `--"+m[2]+"`")
		default:
			names = append(names, "`--"+m[2]+"`")
		}
	}
	line := fmt.Sprintf("- `%s`: %s.", usage[1], strings.TrimSuffix(about, "."))
	if len(names) > 0 {
		line += " " + strings.Join(names, ", ") + "."
	}
	return line + "\n", nil
}
