package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// target is one fuzz test; dir is its package's, from the module's root.
type target struct{ dir, name string }

func (t target) String() string { return t.dir + "." + t.name }

// list finds the targets of the module at root, in order. Modules within it
// are not looked into.
func list(root string) ([]target, error) {
	var out []target
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			if path != root && (err == nil || name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		found, err := inFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, name := range found {
			out = append(out, target{filepath.ToSlash(dir), name})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list fuzz targets: %w", err)
	}
	slices.SortFunc(out, func(a, b target) int { return cmp.Or(cmp.Compare(a.dir, b.dir), cmp.Compare(a.name, b.name)) })
	return out, nil
}

// inFile names the targets of a test file that this machine would compile.
func inFile(path string) ([]string, error) {
	match, err := build.Default.MatchFile(filepath.Dir(path), filepath.Base(path))
	if err != nil || !match {
		return nil, err
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") && takesF(f.Type) {
			out = append(out, f.Name.Name)
		}
	}
	return out, nil
}

// takesF says whether a function takes a *testing.F and nothing else.
func takesF(f *ast.FuncType) bool {
	if len(f.Params.List) != 1 {
		return false
	}
	star, ok := f.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	sel, ok := star.X.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "F"
}

// goTest fuzzes one target, and ends it where it does not end itself.
func goTest(ctx context.Context, t target, o options) (string, error) {
	const slack = 5 * time.Minute // to compile, to run the corpus, and to shrink a finding
	ctx, cancel := context.WithTimeout(ctx, o.time+slack)
	defer cancel()
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+regexp.QuoteMeta(t.name)+"$", "-fuzztime", o.time.String(),
		"-parallel", strconv.Itoa(o.workers), "-timeout", (o.time + slack).String(), "./"+t.dir)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("it does not end: %w", ctx.Err())
	}
	return output.String(), err
}

// result is what go test said of one target.
type result struct {
	executions, interesting int
	saved                   string // the input it failed on, from its package's folder
}

// read takes the last figures, and the name of a saved input. An input of the
// corpus that fails is named by go test, too.
func read(output string) result {
	var r result
	for _, m := range regexp.MustCompile(`execs: (\d+) .*new interesting: (\d+)`).FindAllStringSubmatch(output, -1) {
		r.executions, _ = strconv.Atoi(m[1])
		r.interesting, _ = strconv.Atoi(m[2])
	}
	if m := regexp.MustCompile(`Failing input written to (\S+)`).FindStringSubmatch(output); m != nil {
		r.saved = m[1]
	}
	return r
}
