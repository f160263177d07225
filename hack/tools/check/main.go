// Command check runs the analyzers of go vet and of staticcheck over packages:
//
//	check [FLAGS OF STATICCHECK] PACKAGE...
//	check -shallow PACKAGE...
//
// Facts about dependencies, down to the standard library, take most of their
// time, for example which functions format like Printf. Here both compute them
// in one process.
//
// With -shallow only those of go vet run, and without facts about dependencies.
// That is for packages with little code and thousands of dependencies.
//
// It owns the choice of analyzers: all of go vet, and those that the staticcheck
// command runs by default. Settings and comments that ignore a finding are
// staticcheck's. Start reading at main.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/analysis/suite/vet"
	"golang.org/x/tools/go/packages"
	"honnef.co/go/tools/lintcmd"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == "-shallow" {
		findings, err := shallow(".", os.Args[2:]...)
		for _, f := range findings {
			fmt.Println(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "check:", err)
		}
		if err != nil || len(findings) > 0 {
			os.Exit(1)
		}
		return
	}
	cmd := lintcmd.NewCommand("check")
	cmd.ParseFlags(os.Args[1:])
	cmd.AddAnalyzers(simple.Analyzers...)
	cmd.AddAnalyzers(staticcheck.Analyzers...)
	cmd.AddAnalyzers(stylecheck.Analyzers...)
	cmd.AddAnalyzers(unused.Analyzer)
	cmd.AddBareAnalyzers(vet.Suite...)
	cmd.Run()
}

// shallow runs the analyzers of go vet over packages and their tests. Of
// dependencies it reads the compiler's export data and nothing else.
func shallow(dir string, patterns ...string) (findings []string, err error) {
	pkgs, err := packages.Load(&packages.Config{Mode: packages.LoadSyntax | packages.NeedModule, Dir: dir, Tests: true}, patterns...)
	if err != nil {
		return nil, err
	}
	var faults []error
	for _, p := range pkgs {
		for _, e := range p.Errors {
			faults = append(faults, e)
		}
		p.Imports = nil // else the analyzers run over dependencies, of which there is no source
	}
	if len(pkgs) == 0 {
		faults = append(faults, fmt.Errorf("no packages match %q", patterns))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	graph, err := checker.Analyze(vet.Suite, pkgs, nil)
	if err != nil {
		return nil, err
	}
	for action := range graph.All() {
		if action.Err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", action, action.Err))
		}
		for _, d := range action.Diagnostics {
			if action.IsRoot {
				findings = append(findings, fmt.Sprintf("%s: %s (%s)", action.Package.Fset.Position(d.Pos), d.Message, action.Analyzer.Name))
			}
		}
	}
	slices.Sort(findings)
	return slices.Compact(findings), errors.Join(faults...) // a package and its tests are analysed both
}
