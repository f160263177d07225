package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// metric is a metric as the source declares it.
type metric struct {
	name, kind, help string
	labels           []string
}

// metrics lists every metric of the programs, and the chart's alerts.
func metrics(root string) (string, error) {
	found, err := readMetrics(root)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, program := range []struct{ title, prefix string }{
		{"Operator", "metalfleet_operator_"}, {"Gateway", "metalfleet_gateway_"}, {"Gateway, with vLLM's names", "vllm:"}, {"Agent", "metalfleet_agent_"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n|metric|type|labels|meaning|\n|---|---|---|---|\n", program.title)
		found = slices.DeleteFunc(found, func(m metric) bool {
			if !strings.HasPrefix(m.name, program.prefix) {
				return false
			}
			fmt.Fprintf(&b, "|`%s`|%s|%s|%s|\n", m.name, m.kind, strings.Join(m.labels, ", "), strings.TrimSuffix(m.help, "."))
			return true
		})
	}
	if len(found) > 0 {
		return "", fmt.Errorf("%s has the prefix of no program", found[0].name)
	}
	alerts, err := readAlerts(root)
	return b.String() + alerts, err
}

// readMetrics finds every metric that the programs declare, sorted by name.
func readMetrics(root string) ([]metric, error) {
	var out []metric
	for _, dir := range []string{"agent", "controllers", "gateway"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			found, err := metricsOf(file)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			out = append(out, found...)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// metricsOf reads the declarations of one file: NewDesc, and the constructors
// that take options.
func metricsOf(file *ast.File) ([]metric, error) {
	constants := stringConstants(file)
	var out []metric
	var wrong error
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || wrong != nil {
			return wrong == nil
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if pkg, ok := sel.X.(*ast.Ident); !ok || pkg.Name != "prometheus" || !strings.HasPrefix(sel.Sel.Name, "New") {
			return true
		}
		m, known, err := declared(sel.Sel.Name, call.Args, constants)
		if wrong = err; err == nil && known {
			out = append(out, m)
		}
		return true
	})
	return out, wrong
}

// declared reads the arguments of one constructor.
func declared(constructor string, args []ast.Expr, constants map[string]string) (m metric, known bool, err error) {
	m.kind = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(constructor, "New"), "Vec"), "Func"))
	switch m.kind {
	case "desc":
		m.name, m.help, m.kind = text(args[0], constants), text(args[1], constants), "gauge"
		if strings.HasSuffix(m.name, "_total") {
			m.kind = "counter"
		}
		m.labels = list(args[2], constants)
	case "counter", "gauge", "histogram":
		options, ok := args[0].(*ast.CompositeLit)
		if !ok {
			return m, false, fmt.Errorf("%s without literal options", constructor)
		}
		for _, e := range options.Elts {
			switch kv := e.(*ast.KeyValueExpr); fmt.Sprint(kv.Key) {
			case "Name":
				m.name = text(kv.Value, constants)
			case "Help":
				m.help = text(kv.Value, constants)
			}
		}
		if strings.HasSuffix(constructor, "Vec") {
			m.labels = list(args[1], constants)
		}
	default:
		return m, false, nil
	}
	if m.name == "" || m.help == "" {
		return m, false, fmt.Errorf("a metric whose name (%q) or help (%q) is no constant text", m.name, m.help)
	}
	return m, true, nil
}

// stringConstants returns the string constants of a file, at any level.
func stringConstants(file *ast.File) map[string]string {
	out := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			for i, name := range spec.Names {
				if i < len(spec.Values) {
					out[name.Name] = text(spec.Values[i], out)
				}
			}
		}
		return true
	})
	return out
}

// text evaluates a constant text; empty if the expression is none.
func text(e ast.Expr, constants map[string]string) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		if err != nil || e.Kind != token.STRING {
			return ""
		}
		return s
	case *ast.Ident:
		return constants[e.Name]
	case *ast.BinaryExpr:
		a, b := text(e.X, constants), text(e.Y, constants)
		if e.Op == token.ADD && a != "" && b != "" {
			return a + b
		}
	}
	return ""
}

func list(e ast.Expr, constants map[string]string) (out []string) {
	if lit, ok := e.(*ast.CompositeLit); ok {
		for _, item := range lit.Elts {
			out = append(out, text(item, constants))
		}
	}
	return out
}

// readAlerts lists the chart's alert rules.
func readAlerts(root string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(root, "charts", "metalfleet", "files", "rules.yaml"))
	if err != nil {
		return "", err
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For string
				Labels           map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(raw, &rules); err != nil {
		return "", fmt.Errorf("rules.yaml: %w", err)
	}
	var b strings.Builder
	b.WriteString("\n## Alerts\n\nEach alert names the next step and links to its section of the runbook.\n\n|alert|expression|for|severity|\n|---|---|---|---|\n")
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			fmt.Fprintf(&b, "|`%s`|`%s`|%s|%s|\n", r.Alert, r.Expr, r.For, r.Labels["severity"])
		}
	}
	return b.String(), nil
}
