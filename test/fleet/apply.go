package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// installConfig applies what an administrator installs with the CRDs: the
// system namespace, the service accounts and the RBAC in config/rbac. It leaves out
// config/policy, as the chart does with tenants.open and macs.allowLocalAddresses:
// there is one tenant, and its Macs are on this machine.
func (f *Fleet) installConfig(ctx context.Context) error {
	if err := f.createNamespace(ctx, Namespace); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(f.options.Root, "config", "rbac", "*.yaml"))
	if err != nil {
		return fmt.Errorf("config/rbac: %w", err)
	}
	if len(files) == 0 {
		return errors.New("config/rbac holds no YAML; `make generate` writes it")
	}
	sort.Strings(files)
	for _, file := range files {
		if err := f.applyFile(ctx, file); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet) applyFile(ctx context.Context, file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	objects, err := decode(b)
	if err != nil {
		return fmt.Errorf("apply %s: %w", file, err)
	}
	for _, o := range objects {
		if o.GetKind() == "Kustomization" {
			continue // a recipe for kustomize, not an object
		}
		apply := client.ApplyConfigurationFromUnstructured(o)
		if err := f.Client.Apply(ctx, apply, client.FieldOwner("fleet"), client.ForceOwnership); err != nil {
			return fmt.Errorf("apply %s %s of %s: %w", o.GetKind(), o.GetName(), file, err)
		}
	}
	return nil
}

// decode reads the objects of a YAML file; empty documents are left out.
func decode(b []byte) ([]*unstructured.Unstructured, error) {
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096)
	var out []*unstructured.Unstructured
	for {
		o := &unstructured.Unstructured{}
		switch err := d.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, err
		case len(o.Object) > 0:
			out = append(out, o)
		}
	}
}
