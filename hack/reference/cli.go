package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/hack/reference/help"
)

// bin is the folder of the programs, which make build fills.
func bin(root string) string { return filepath.Join(root, "bin") }

// commands lists the flags of the daemons in full, and of the other commands
// what they do and their flags' names.
func commands(root string) (string, error) {
	var b strings.Builder
	for _, daemon := range [][]string{{"operator"}, {"gateway"}, {"gateway", "new-key"}, {"gateway", "check"}, {"agent"}, {"agent", "join"}} {
		text, err := help.Of(bin(root), daemon...)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "\n## %s\n\n", strings.Join(daemon, " "))
		for _, f := range help.Flags(text) {
			b.WriteString(line(f))
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

// ownFolder is a default that depends on where the programs are.
var ownFolder = regexp.MustCompile(`"?/[^" ]*/bin/([a-z]+)"?`)

// line is one flag as the page lists it.
func line(f help.Flag) string {
	out := "- `--" + f.Name
	switch {
	case strings.Contains(f.Placeholder, "="):
		out += " " + f.Placeholder
	case f.Placeholder != "":
		out += " " + strings.ToUpper(f.Placeholder)
	}
	out += "`"
	if f.Default != "" {
		out += " (" + ownFolder.ReplaceAllString(f.Default, "$1 next to the agent") + ")"
	}
	return out + ": " + strings.TrimSuffix(f.Usage, ".") + ".\n"
}

var engineLine = regexp.MustCompile(`(?m)^  ([a-z]+) +(.+)$`)

func engineCommands(root string) (string, error) {
	text, err := help.Of(bin(root), "engine")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("\n## engine\n\n")
	all := engineLine.FindAllStringSubmatch(text, -1)
	if len(all) < 10 {
		return "", fmt.Errorf("engine --help lists %d commands:\n%s", len(all), text)
	}
	for _, m := range all {
		own, err := help.Of(bin(root), "engine", m[1])
		if err != nil {
			return "", err
		}
		var names []string
		for _, f := range help.Flags(own) {
			names = append(names, "`--"+f.Name+"`")
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
		text, err := help.Of(bin(root), append([]string{"kubectl-metalfleet"}, group...)...)
		if err != nil {
			return "", err
		}
		_, list, found := strings.Cut(text, "Available Commands:\n")
		list, _, ended := strings.Cut(list, "\n\n")
		if !found || !ended {
			return "", fmt.Errorf("kubectl-metalfleet --help lists no commands:\n%s", text)
		}
		for _, m := range pluginLine.FindAllStringSubmatch(list, -1) {
			if slices.Contains([]string{"help", "completion", "rollout"}, m[1]) {
				continue
			}
			out, err := pluginCommand(root, append(slices.Clone(group), m[1]), m[2])
			if err != nil {
				return "", err
			}
			b.WriteString(out)
		}
	}
	return b.String(), nil
}

func pluginCommand(root string, command []string, about string) (string, error) {
	text, err := help.Of(bin(root), append([]string{"kubectl-metalfleet"}, command...)...)
	if err != nil {
		return "", err
	}
	usage := usageLine.FindStringSubmatch(text)
	_, flags, _ := strings.Cut(text, "\nFlags:\n")
	flags, _, _ = strings.Cut(flags, "\n\n")
	if usage == nil || flags == "" {
		return "", fmt.Errorf("%q has no usage or no flags:\n%s", command, text)
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
	out := fmt.Sprintf("- `%s`: %s.", usage[1], strings.TrimSuffix(about, "."))
	if len(names) > 0 {
		out += " " + strings.Join(names, ", ") + "."
	}
	return out + "\n", nil
}
