package lint

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// segment is a piece of text that counts for a package or a document.
type segment struct {
	at, kind, file string
	line           int
	text           string
}

// goSegments returns the comments and the string literals of Go files.
func goSegments(sources []source) (out []segment) {
	for _, s := range sources {
		if s.generated {
			continue
		}
		for _, group := range s.tree.Comments {
			var lines []string
			for _, c := range group.List {
				lines = append(lines, strings.TrimPrefix(strings.TrimPrefix(c.Text, "//"), "/*"))
			}
			out = append(out, segment{s.pkg, kindOf(s, inComments), s.path, s.set.Position(group.Pos()).Line, withoutCode(strings.Join(lines, "\n"))})
		}
		for _, lit := range literals(s.tree) {
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				continue
			}
			if lit.Value[0] == '"' { // a literal on a single line
				text = strings.ReplaceAll(text, "\n", "\r")
			}
			out = append(out, segment{s.pkg, kindOf(s, inStrings), s.path, s.set.Position(lit.Pos()).Line, withoutCode(text)})
		}
	}
	return out
}

// literals are the string literals of a file without import paths and tags of
// fields.
func literals(tree *ast.File) (out []*ast.BasicLit) {
	ast.Inspect(tree, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			if x.Tag != nil && x.Type != nil {
				out = append(out, literalsOf(x.Type)...)
				return false
			}
		case *ast.BasicLit:
			if x.Kind == token.STRING {
				out = append(out, x)
			}
		}
		return true
	})
	return out
}

func literalsOf(e ast.Expr) (out []*ast.BasicLit) {
	ast.Inspect(e, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			out = append(out, lit)
		}
		return true
	})
	return out
}

var (
	codeSpan   = regexp.MustCompile("`[^`\n]*`")
	linkTarget = regexp.MustCompile(`\]\([^)\s]*\)`)
)

// withoutCode replaces code spans with a mark.
func withoutCode(text string) string { return codeSpan.ReplaceAllString(text, "·") }

// documentSegment returns the text of a document. In Markdown, code and link targets do not
// count.
func documentSegment(name, text string) segment {
	if strings.HasSuffix(name, ".md") {
		lines := strings.Split(text, "\n")
		fence := ""
		for i, line := range lines {
			trimmed := strings.TrimLeft(line, " >")
			mark := trimmed[:len(trimmed)-len(strings.TrimLeft(trimmed, "`~"))]
			switch {
			case fence != "":
				if strings.HasPrefix(mark, fence) {
					fence = ""
				}
				lines[i] = ""
			case len(mark) >= 3:
				fence = mark
				lines[i] = ""
			}
		}
		text = linkTarget.ReplaceAllString(strings.Join(lines, "\n"), "]")
	}
	return segment{name, inText, name, 1, withoutCode(text)}
}

// isDocument reports whether people read a file: documents, charts, configuration, scripts.
// Generated ones count at their source.
func isDocument(name, text string) bool {
	if strings.Contains("/"+name, "/testdata/") || strings.Contains(text, "controller-gen.kubebuilder.io/version") {
		return false
	}
	base := name[strings.LastIndex(name, "/")+1:]
	switch base {
	case "Makefile", "Dockerfile", "NOTES.txt":
		return true
	}
	switch base[strings.LastIndex(base, ".")+1:] {
	case "md", "yaml", "yml", "tpl", "sh", "py", "cpp", "h":
		return true
	}
	return false
}

// declared lists the names that a file declares: functions, types, variables,
// fields and parameters.
func declared(tree *ast.File) (out []*ast.Ident) {
	ast.Inspect(tree, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.FuncDecl:
			out = append(out, x.Name)
		case *ast.TypeSpec:
			out = append(out, x.Name)
		case *ast.ValueSpec:
			out = append(out, x.Names...)
		case *ast.Field:
			out = append(out, x.Names...)
		case *ast.AssignStmt:
			if x.Tok == token.DEFINE {
				out = append(out, identsOf(x.Lhs...)...)
			}
		case *ast.RangeStmt:
			if x.Tok == token.DEFINE {
				out = append(out, identsOf(x.Key, x.Value)...)
			}
		}
		return true
	})
	return out
}

func identsOf(all ...ast.Expr) (out []*ast.Ident) {
	for _, e := range all {
		if id, ok := e.(*ast.Ident); ok {
			out = append(out, id)
		}
	}
	return out
}

// words splits an identifier into lower-case words.
func words(name string) []string {
	var out []string
	var word []rune
	runes := []rune(name)
	for i, r := range runes {
		begins := unicode.IsUpper(r) && i > 0 && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if (begins || !unicode.IsLetter(r)) && word != nil {
			out, word = append(out, string(word)), nil
		}
		if unicode.IsLetter(r) {
			word = append(word, unicode.ToLower(r))
		}
	}
	if word != nil {
		out = append(out, string(word))
	}
	return out
}
