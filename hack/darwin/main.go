// Command darwin is the part of `make darwin` that is not a compiler: it writes text stubs
// of the system's libraries to link against, and checks the result.
//
// It owns which names a stub may offer: of libc++ those that Apple's own linker already
// bound for libmlx, and the few that libcxx.txt justifies; of the other libraries those
// that the engine's Go packages import. It rejects a program that would not load on a Mac
// or in which an exception of libmlx could not be caught. It runs nothing: the strongest
// result is "link-checked".
//
// Start reading at run.sh, then judge.go.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "darwin:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: darwin stubs --mlx LIBMLX --packages PATTERN OUT | darwin check --mlx LIBMLX PROGRAM")

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	f := flag.NewFlagSet("darwin "+args[0], flag.ContinueOnError)
	mlx := f.String("mlx", "", "the libmlx.dylib that is linked against")
	packages := f.String("packages", "./cmd/engine", "Go packages that are linked, as the go command names them")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	if f.NArg() != 1 || *mlx == "" {
		return errUsage
	}
	switch args[0] {
	case "stubs":
		return writeStubs(*mlx, *packages, f.Arg(0))
	case "check":
		return check(*mlx, f.Arg(0), out)
	}
	return errUsage
}
