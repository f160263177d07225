package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// assetsVariable names the folder with ready programs; other test tools use
// the same name.
const assetsVariable = "KUBEBUILDER_ASSETS"

const modulePath = "metalfleet.dev/metalfleet"

// errNoAssets is the error of a program of the control plane that is missing.
var errNoAssets = errors.New("local Kubernetes is not built")

// assets are the programs, each by its path.
type assets struct {
	etcd, apiserver, controllers string
}

// AssetsDir is the folder that etcd, kube-apiserver, kubectl and, where it was
// built here, kube-controller-manager are taken from.
func AssetsDir() (string, error) {
	if dir := os.Getenv(assetsVariable); dir != "" {
		return dir, nil
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "bin", "kube"), nil
}

// HasControllers says whether the assets hold kube-controller-manager, which
// folders made by other tools do not.
func HasControllers() bool {
	_, err := findAssets(true)
	return err == nil
}

func findAssets(controllers bool) (assets, error) {
	dir, err := AssetsDir()
	if err != nil {
		return assets{}, err
	}
	a := assets{
		etcd:        filepath.Join(dir, "etcd"),
		apiserver:   filepath.Join(dir, "kube-apiserver"),
		controllers: filepath.Join(dir, "kube-controller-manager"),
	}
	wanted := []string{a.etcd, a.apiserver}
	if controllers {
		wanted = append(wanted, a.controllers)
	}
	for _, program := range wanted {
		if _, err := os.Stat(program); err != nil {
			return assets{}, fmt.Errorf("%w: run `make kube`, or have %s name a folder with it: %w", errNoAssets, assetsVariable, err)
		}
	}
	return a, nil
}

// moduleRoot is the folder of this module's go.mod, at or above the working
// directory (a test's is its package's folder).
func moduleRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(b), "module "+modulePath+"\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod of %s at or above %s", modulePath, start)
		}
	}
}
