package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// source is a parsed Go file.
type source struct {
	file
	generated bool
	set       *token.FileSet
	tree      *ast.File
}

// readTree parses every Go file under root, regardless of build tags: the law applies to
// darwin files as well. Fixtures and build output are skipped.
func readTree(root string) ([]source, error) {
	var out []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && skipFolder(d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		s, err := parse(root, path)
		if err != nil {
			return err
		}
		out = append(out, s)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", root, err)
	}
	return out, nil
}

func skipFolder(name string) bool {
	return name == "testdata" || name == "vendor" || name == "bin" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
}

func parse(root, path string) (source, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, path, nil, parser.ParseComments)
	if err != nil {
		return source{}, err
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return source{}, err
	}
	s := source{generated: ast.IsGenerated(tree), set: set, tree: tree}
	s.path = filepath.ToSlash(rel)
	s.pkg = "."
	if i := strings.LastIndex(s.path, "/"); i >= 0 {
		s.pkg = s.path[:i]
	}
	s.test = strings.HasSuffix(s.path, "_test.go")
	for _, imp := range tree.Imports {
		p, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			return source{}, fmt.Errorf("%s: import %s: %w", s.path, imp.Path.Value, err)
		}
		s.imports = append(s.imports, p)
	}
	return s, nil
}

func files(sources []source) []file {
	out := make([]file, len(sources))
	for i, s := range sources {
		out[i] = s.file
	}
	return out
}

// moduleVersions reads the versions that a go.mod requires, by module; a replaced module
// counts as its replacement.
func moduleVersions(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	required, replaced := map[string]string{}, map[string]string{}
	block := ""
	for _, line := range strings.Split(string(b), "\n") {
		line, _, _ = strings.Cut(line, "//")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
			continue
		case len(fields) == 2 && fields[1] == "(":
			block = fields[0]
			continue
		case fields[0] == ")":
			block = ""
			continue
		case block == "":
			block, fields = fields[0], fields[1:]
			addVersion(block, fields, required, replaced)
			block = ""
			continue
		}
		addVersion(block, fields, required, replaced)
	}
	for m, v := range replaced {
		if _, ok := required[m]; ok {
			required[m] = v
		}
	}
	return required, nil
}

func addVersion(block string, fields []string, required, replaced map[string]string) {
	switch {
	case block == "require" && len(fields) == 2:
		required[fields[0]] = fields[1]
	case block == "replace" && len(fields) == 4: // old => new version
		replaced[fields[0]] = fields[3]
	}
}
