package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	goparser "go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles, CgoFiles       []string
	ImportMap               map[string]string
}

// checker checks the types of packages with one file changed, against what the
// compiler has left of the packages below them.
type checker struct {
	root   string
	byDir  map[string]listed
	export map[string]string // file with what a package exports, by import path
}

// newChecker lists and compiles the module's packages.
func newChecker(ctx context.Context, root string) (*checker, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-export", "-deps",
		"-json=ImportPath,Dir,Export,GoFiles,CgoFiles,ImportMap", "./...")
	cmd.Dir = root
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, said.String())
	}
	c := &checker{root: root, byDir: map[string]listed{}, export: map[string]string{}}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return c, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		}
		c.export[p.ImportPath] = p.Export
		c.byDir[p.Dir] = p
	}
}

// all checks every entry, and says how many it knows nothing of: those of other
// modules, of other systems and of files that no compiler sees.
func (c *checker) all(ctx context.Context, entries []entry) (unknown int, err error) {
	errs := make([]error, len(entries))
	known := make([]bool, len(entries))
	queue := make(chan int)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := range queue {
				known[i], errs[i] = c.one(entries[i])
			}
		})
	}
	for i := range entries {
		if ctx.Err() != nil {
			break
		}
		queue <- i
	}
	close(queue)
	workers.Wait()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	for _, k := range known {
		if !k {
			unknown++
		}
	}
	return unknown, errors.Join(errs...)
}

// one checks the types of the package whose file the entry changes.
func (c *checker) one(e entry) (known bool, err error) {
	file := filepath.Join(c.root, e.file)
	p, ok := c.byDir[filepath.Dir(file)]
	if !ok || len(p.CgoFiles) > 0 || !slices.Contains(p.GoFiles, filepath.Base(file)) {
		return false, nil
	}
	changed, err := e.mutated(c.root)
	if err != nil {
		return true, err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		var source any
		if path == file {
			source = changed
		}
		f, err := goparser.ParseFile(fset, path, source, goparser.SkipObjectResolution)
		if err != nil {
			return true, fmt.Errorf("line %d: %s: does not compile: %w", e.line, e.name, err)
		}
		files = append(files, f)
	}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", c.lookup(p)), Sizes: types.SizesFor("gc", runtime.GOARCH)}
	if _, err := conf.Check(p.ImportPath, fset, files, nil); err != nil {
		return true, fmt.Errorf("line %d: %s: does not compile: %w", e.line, e.name, err)
	}
	return true, nil
}

// lookup opens what the compiler left of a package that p imports.
func (c *checker) lookup(p listed) importer.Lookup {
	return func(path string) (io.ReadCloser, error) {
		if mapped := p.ImportMap[path]; mapped != "" {
			path = mapped
		}
		name := c.export[path]
		if name == "" {
			return nil, fmt.Errorf("%s is not among the packages below %s", path, strings.TrimPrefix(p.Dir, c.root))
		}
		return os.Open(name)
	}
}
