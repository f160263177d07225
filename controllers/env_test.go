package controllers_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/controllers"
	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

// system is the operator's namespace, in which its Role is installed.
const system = controllers.DefaultNamespace

// env is one control plane for all tests of this package; they run in sequence.
var env *testenv.Env

func TestMain(m *testing.M) {
	os.Exit(func() int {
		// Assets from elsewhere have no kube-controller-manager; the one test that needs it
		// fails with that reason.
		e, err := testenv.Start(context.Background(), testenv.Options{Controllers: testenv.HasControllers()})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		env = e
		// Once for all tests: goroutines of an operator may outlive it for a moment.
		log := logr.Discard()
		if os.Getenv("OPERATOR_LOG") != "" {
			log = logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil))
		}
		ctrl.SetLogger(log)
		klog.SetLogger(log)
		defer func() {
			if err := e.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		if err := installRBAC(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// installRBAC applies config/rbac, so that the operator of these tests has the same
// permissions as in a cluster.
func installRBAC() error {
	c, err := client.New(env.Config(), client.Options{})
	if err != nil {
		return err
	}
	dir, err := testenv.RBACDir()
	if err != nil {
		return err
	}
	for _, f := range []string{"operator.yaml", "role.yaml", "people.yaml", "agents.yaml", "writes.yaml"} {
		raw, err := os.Open(filepath.Join(dir, f))
		if err != nil {
			return err
		}
		defer raw.Close()
		for r := utilyaml.NewYAMLReader(bufio.NewReader(raw)); ; {
			doc, err := r.Read()
			if err != nil {
				break
			}
			var u unstructured.Unstructured
			if err := utilyaml.Unmarshal(doc, &u.Object); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
			if u.Object == nil {
				continue
			}
			if err := c.Create(context.Background(), &u); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
		}
	}
	return awaitPolicies(c)
}

// awaitPolicies waits until the API server enforces the policies of config/rbac. It learns
// of policies by a watch: once the policy that was created last denies a request, the
// others are in effect too.
func awaitPolicies(c client.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience.Most)
	defer cancel()
	const name = "the-last-policy"
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	policy.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
		ResourceNames: []string{name},
		RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		},
	}}}
	policy.Spec.Validations = []admissionregistrationv1.Validation{{Expression: "false"}}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
	binding.Spec.PolicyName = name
	binding.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	for _, o := range []client.Object{policy, binding} {
		if err := c.Create(ctx, o); err != nil {
			return err
		}
	}
	for {
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
		err := c.Create(ctx, probe, client.DryRunAll)
		if apierrors.IsInvalid(err) {
			break
		}
		if err != nil {
			return fmt.Errorf("waiting for the policies: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.Join(c.Delete(ctx, binding), c.Delete(ctx, policy))
}

// asOperator returns a client configuration for the operator's ServiceAccount.
func asOperator() *rest.Config {
	config := env.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + system + ":metalfleet-operator",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + system, "system:authenticated"}}
	return config
}
