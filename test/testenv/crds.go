package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	typed "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// settle is how long the API server delays every create of a kind after that
// kind was established: 2 s by its own account, and the time stamp it compares
// with has whole seconds.
const settle = 2 * time.Second

const crdTimeout = readyTimeout

// RBACDir is the folder with the roles and policies that a test installs.
func RBACDir() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "config", "rbac"), nil
}

// readCRDs reads one CustomResourceDefinition from each file the globs name.
func readCRDs(globs []string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	if globs == nil {
		root, err := moduleRoot()
		if err != nil {
			return nil, err
		}
		globs = []string{filepath.Join(root, "config", "crd", "*.yaml")}
	}
	var out []*apiextensionsv1.CustomResourceDefinition
	for _, glob := range globs {
		files, err := filepath.Glob(glob)
		if err != nil {
			return nil, fmt.Errorf("CRDs %s: %w", glob, err)
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("CRDs %s: no such file; `make generate` writes config/crd", glob)
		}
		sort.Strings(files)
		for _, file := range files {
			crd, err := readCRD(file)
			if err != nil {
				return nil, err
			}
			out = append(out, crd)
		}
	}
	return out, nil
}

func readCRD(file string) (*apiextensionsv1.CustomResourceDefinition, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("CRD: %w", err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(b, crd); err != nil {
		return nil, fmt.Errorf("CRD %s: %w", file, err)
	}
	if crd.Kind != "CustomResourceDefinition" {
		return nil, fmt.Errorf("CRD %s: holds a %q, not one CustomResourceDefinition", file, crd.Kind)
	}
	return crd, nil
}

// applyCRDs creates or updates the CRDs, waits until the API server serves
// them, and says from when on creates of their kinds are no longer delayed.
func applyCRDs(ctx context.Context, config *rest.Config, crds []*apiextensionsv1.CustomResourceDefinition) (time.Time, error) {
	var usable time.Time
	clients, err := apiextensions.NewForConfig(config)
	if err != nil {
		return usable, fmt.Errorf("client for CRDs: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, crdTimeout)
	defer cancel()
	client := clients.ApiextensionsV1().CustomResourceDefinitions()
	for _, crd := range crds {
		if err := applyCRD(ctx, client, crd); err != nil {
			return usable, fmt.Errorf("apply CRD %s: %w", crd.Name, err)
		}
	}
	for _, crd := range crds {
		since, err := established(ctx, client, crd.Name)
		if err != nil {
			return usable, fmt.Errorf("CRD %s: %w", crd.Name, err)
		}
		if t := since.Add(settle); t.After(usable) {
			usable = t
		}
	}
	return usable, nil
}

func applyCRD(ctx context.Context, client typed.CustomResourceDefinitionInterface, crd *apiextensionsv1.CustomResourceDefinition) error {
	_, err := client.Create(ctx, crd, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	// A kept folder: its data may be of an older version of the CRD.
	old, err := client.Get(ctx, crd.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	next := crd.DeepCopy()
	next.ResourceVersion = old.ResourceVersion
	_, err = client.Update(ctx, next, metav1.UpdateOptions{})
	return err
}

// established waits for the condition and returns since when it is true.
func established(ctx context.Context, client typed.CustomResourceDefinitionInterface, name string) (time.Time, error) {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		crd, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return time.Time{}, err
		}
		for _, c := range crd.Status.Conditions {
			switch {
			case c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue:
				return c.LastTransitionTime.Time, nil
			case c.Type == apiextensionsv1.NamesAccepted && c.Status == apiextensionsv1.ConditionFalse:
				return time.Time{}, fmt.Errorf("names refused: %s", c.Message)
			}
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("not established: %w", ctx.Err())
		case <-tick.C:
		}
	}
}
