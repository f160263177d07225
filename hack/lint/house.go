package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// longFunction is the maximum number of lines of a function, from the func to its closing
// brace.
const longFunction = 60

// undocumented lists the packages without a package comment of some substance.
func undocumented(sources []source) []string {
	documented := map[string]bool{}
	for _, s := range sources {
		if s.test || s.generated {
			continue
		}
		documented[s.pkg] = documented[s.pkg] || s.tree.Doc != nil && len(strings.Fields(s.tree.Doc.Text())) >= 8
	}
	var out []string
	for pkg, ok := range documented {
		if !ok {
			out = append(out, pkg+": the package has no comment; it states what the package owns, what it refuses and where to start reading")
		}
	}
	sort.Strings(out)
	return out
}

// badNames lists packages with meaningless names.
func badNames(sources []source) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range sources {
		switch base := path.Base(s.pkg); base {
		case "util", "utils", "common", "helpers", "types":
			if !seen[s.pkg] {
				out = append(out, fmt.Sprintf("%s: no package is called %s: name it after what it gives", s.pkg, base))
			}
			seen[s.pkg] = true
		}
	}
	return out
}

// longFunctions lists functions past the limit in code that people write and
// ship.
func longFunctions(sources []source) []string {
	var out []string
	for _, s := range sources {
		if s.test || s.generated {
			continue
		}
		for _, d := range s.tree.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := s.set.Position(f.End()).Line - s.set.Position(f.Pos()).Line + 1
			if lines > longFunction {
				out = append(out, fmt.Sprintf("%s.%s: %d lines: past %d, look for the second idea", s.pkg, functionName(f), lines, longFunction))
			}
		}
	}
	sort.Strings(out)
	return out
}

func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name + "." + f.Name.Name
		default:
			return f.Name.Name
		}
	}
}

// silentSkips lists tests that skip without a reason.
func silentSkips(sources []source) []string {
	var out []string
	for _, s := range sources {
		if !s.test {
			continue
		}
		ast.Inspect(s.tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			switch sel.Sel.Name {
			case "SkipNow":
			case "Skip", "Skipf":
				if saysWhy(call) {
					return true
				}
			default:
				return true
			}
			line := s.set.Position(call.Pos()).Line
			out = append(out, fmt.Sprintf("%s:%d: a test skips without a reason: say in a sentence what is missing", s.path, line))
			return true
		})
	}
	return out
}

// saysWhy requires a literal of at least three words.
func saysWhy(call *ast.CallExpr) bool {
	if len(call.Args) == 0 {
		return false
	}
	lit, ok := call.Args[0].(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return false
	}
	text, err := strconv.Unquote(lit.Value)
	return err == nil && len(strings.Fields(text)) >= 3
}

// machinePath matches folders that exist on only one person's or runner's machine.
func machinePath() *regexp.Regexp {
	return regexp.MustCompile(`(^|[^\w./$}~-])/(work|root|home|Users)/[a-z.]`)
}

// machinePaths lists the lines of a text that name such a folder.
func machinePaths(name, text string) []string {
	re := machinePath()
	var out []string
	for i, line := range strings.Split(text, "\n") {
		if re.MatchString(line) {
			out = append(out, fmt.Sprintf("%s:%d: names a folder of one machine: %s", name, i+1, strings.TrimSpace(line)))
		}
	}
	return out
}

// disagreements lists the modules that two go.mod files have at different
// versions: each such difference compiles the packages of a module twice.
func disagreements(nameA string, a map[string]string, nameB string, b map[string]string) []string {
	var out []string
	for m, v := range a {
		if w, ok := b[m]; ok && w != v {
			out = append(out, fmt.Sprintf("%s: %s has %s, %s has %s: raise the lower one", m, nameA, v, nameB, w))
		}
	}
	sort.Strings(out)
	return out
}
