//go:build !race

package policy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// owned is the JSON of a managedFields entry that claims fields.
func owned(manager, version, fields string) string {
	return fmt.Sprintf(`{"manager":%q,"operation":"Update","apiVersion":%q,"fieldsType":"FieldsV1","fieldsV1":%s}`, manager, version, fields)
}

// many returns n keys with a value, as JSON.
func many(n int, value string) string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf(`"f:%064d":%s`, i, value)
	}
	return "{" + strings.Join(keys, ",") + "}"
}

// certificateRequest returns one as it is in a CertificateSigningRequest.
func certificateRequest(t *testing.T) string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// TestAnAgentMakesUpNoManagedFields: the API server stores what a client sends as managedFields. A
// Lease of 1 MiB would be written whole with each renewal, and a request with each attempt to join.
func TestAnAgentMakesUpNoManagedFields(t *testing.T) {
	const leases, signing = "coordination.k8s.io/v1", "certificates.k8s.io/v1"
	lease := "{apiVersion: " + leases + ", kind: Lease, metadata: {name: mac-fields, namespace: " + system + "}}"
	fields := "system:serviceaccount:" + system + ":mac-fields"
	w := newWorld(t)
	for _, o := range []string{lease,
		"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: fields}, rules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, update, patch]}, {apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests], verbs: [create]}]}",
		"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: fields}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: fields}, subjects: [{kind: User, name: \"" + fields + "\"}]}"} {
		if err := w.as(root).Create(t.Context(), object(t, o)); err != nil {
			t.Fatal(err)
		}
	}
	renewal := func(entries ...string) string {
		return `{"metadata":{"managedFields":[` + strings.Join(entries, ",") + `]},"spec":{"holderIdentity":"me"}}`
	}
	request := func(entries ...string) string {
		return `{"apiVersion":"` + signing + `","kind":"CertificateSigningRequest","metadata":{"name":"metalfleet-mac-fields","managedFields":[` + strings.Join(entries, ",") +
			`]},"spec":{"signerName":"metalfleet.dev/agent","usages":["digital signature","server auth"],"request":"` + certificateRequest(t) + `"}}`
	}
	var managers []string
	for i := range 20 {
		managers = append(managers, strings.Replace(owned(fmt.Sprintf("%0100d", i), leases, `{"f:spec":{"f:renewTime":{}}}`), "Update", "Apply", 1)) // of which any number is kept
	}
	const refused = "managedFields"
	w.play([]attempt{
		{name: "fields of a Lease", who: fields, object: lease, patch: renewal(owned("a", leases, `{"f:metadata":{"f:annotations":`+many(60, "{}")+`}}`)), refused: refused},
		{name: "a renewal", who: fields, object: lease, patch: `{"spec":{"holderIdentity":"me"}}`},
		{name: "nested fields of a Lease", who: fields, object: lease, patch: renewal(owned("a", leases, `{"f:metadata":{"f:annotations":{"f:a":{"f:b":`+many(1000, "{}")+`}}}}`)), refused: refused},
		{name: "managers of a Lease", who: fields, object: lease, patch: renewal(managers...), refused: refused},
		{name: "fields of a request", who: fields, object: request(owned("a", signing, `{"f:metadata":{"f:annotations":`+many(60, "{}")+`}}`)), refused: refused},
		{name: "a request", who: fields, object: request()},
	})
	big := object(t, lease)
	patch := client.RawPatch("application/merge-patch+json", []byte(renewal(owned("a", leases, `{"f:metadata":{"f:annotations":`+many(8000, "{}")+`}}`))))
	if err := w.as(root).Patch(t.Context(), big, patch); err != nil {
		t.Fatal(err)
	}
	if b, err := json.Marshal(big); err != nil || len(b) < 1<<19 {
		t.Fatalf("an administrator's Lease has %d bytes (%v)", len(b), err)
	}
	w.play([]attempt{
		{name: "more fields", who: fields, object: lease, patch: renewal(owned("a", leases, `{"f:metadata":{"f:annotations":`+many(8100, "{}")+`}}`)), refused: refused},
		{name: "a renewal of what others made large", who: fields, object: lease, patch: `{"spec":{"holderIdentity":"me"}}`},
	})
}

// TestAPersonMakesUpNoManagedFields: an object that is as large as etcd stores can be neither deleted
// nor reported on.
func TestAPersonMakesUpNoManagedFields(t *testing.T) {
	const version = "metalfleet.dev/v1alpha1"
	mac := "{apiVersion: " + version + ", kind: MacNode, metadata: {name: studio}}"
	made := func(fields string) string { return `{"metadata":{"managedFields":[` + fields + `]}}` }
	managers := repeated(strings.Replace(owned("m%d", version, `{"f:spec":{"f:unschedulable":{}}}`), "Update", "Apply", 1), 33) // each write may add some
	annotations := made(owned("a", version, `{"f:metadata":{"f:annotations":`+many(1000, "{}")+`}}`))
	w := newWorld(t)
	o := object(t, replica)
	if err := w.as(operator).Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.as(root).Delete(context.Background(), o); err != nil {
			t.Error(err)
		}
	})
	w.play([]attempt{
		{name: "fields of a Mac", who: oncall, object: mac, patch: annotations, refused: "managedFields of a MacNode"},
		{name: "many managers of a Mac", who: oncall, object: mac, patch: made(managers), refused: "field managers"},
		{name: "cordons", who: oncall, object: mac, patch: `{"spec":{"unschedulable":true}}`},
		{name: "an administrator", who: fleet, object: mac, patch: annotations},
		{name: "fields of a replica", who: oncall, object: replica, patch: annotations, refused: "managedFields of a ModelReplica"},
		{name: "evicts", who: oncall, object: replica, patch: `{"metadata":{"annotations":{"metalfleet.dev/evict":"true"}}}`},
	})
}

// TestAPersonTakesNoFieldsFromTheirManagers: server-side apply removes the fields that a manager has and no longer names, unless
// others have them too. A Mac whose agent has the conditions of the operator could report nothing any more.
func TestAPersonTakesNoFieldsFromTheirManagers(t *testing.T) {
	const version, refusedMac, refusedReplica = "metalfleet.dev/v1alpha1", "managedFields of a MacNode", "managedFields of a ModelReplica"
	mac := "{apiVersion: " + version + ", kind: MacNode, metadata: {name: fields}}"
	w := newWorld(t)
	for user, o := range map[string]string{root: mac, operator: replica} {
		made := object(t, o)
		if err := w.as(user).Create(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.as(root).Delete(context.Background(), made); err != nil {
				t.Error(err)
			}
		})
	}
	has := func(manager, operation, subresource, fields string) string {
		return strings.Replace(owned(manager, version, fields), `"Update"`, fmt.Sprintf("%q,\"subresource\":%q", operation, subresource), 1)
	}
	with := func(o string, added ...string) string { // its entries, and these
		got := object(t, o)
		if err := w.as(root).Get(t.Context(), client.ObjectKeyFromObject(got), got); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(got.GetManagedFields())
		if err != nil {
			t.Fatal(err)
		}
		return `{"metadata":{"managedFields":` + strings.Join(append([]string{strings.TrimSuffix(string(b), "]")}, added...), ",") + "]}}"
	}
	applied := `{"apiVersion":"` + version + `","kind":"MacNode","metadata":{"name":"fields"},"spec":{"class":"a","unschedulable":%t}}`
	must := func(user, manager, body string, sub ...string) {
		t.Helper()
		patch, o := client.RawPatch(types.ApplyPatchType, []byte(body)), object(t, mac)
		err := error(nil)
		if len(sub) > 0 {
			err = w.as(user).Status().Patch(t.Context(), o, patch, client.FieldOwner(manager), client.ForceOwnership)
		} else {
			err = w.as(user).Patch(t.Context(), o, patch, client.FieldOwner(manager), client.ForceOwnership)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	must(fleet, "gitops", fmt.Sprintf(applied, false))
	must(operator, "metalfleet-operator", `{"apiVersion":"`+version+`","kind":"MacNode","metadata":{"name":"fields"},"status":{"bootID":"b"}}`, "status")
	const boot, ready = `{"f:status":{"f:bootID":{}}}`, `{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:type":{}}}}}`
	w.play([]attempt{
		{name: "all of the status", who: oncall, object: mac, patch: `{"metadata":{"managedFields":[` + has("metalfleet-agent", "Apply", "status", ready) + `]}}`, refused: refusedMac},
		{name: "one more entry of the status", who: oncall, object: mac, patch: with(mac, has("metalfleet-agent", "Apply", "status", boot)), refused: refusedMac},
		{name: "the whole status", who: oncall, object: mac, patch: with(mac, has("metalfleet-agent", "Apply", "status", `{"f:status":{}}`)), refused: refusedMac},
		{name: "a co-owner of the status", who: oncall, object: mac, patch: with(mac, has("x", "Update", "", boot)), refused: refusedMac},
		{name: "a co-owner of the status by its subresource", who: oncall, object: mac, patch: with(mac, has("x", "Update", "status", boot)), refused: refusedMac},
		{name: "fields of the spec", who: oncall, object: mac, patch: with(mac, has("metalfleet-classes", "Apply", "", `{"f:spec":{"f:taints":{}}}`)), refused: refusedMac},
		{name: "the whole spec", who: oncall, object: mac, patch: with(mac, has("metalfleet-classes", "Apply", "", `{"f:spec":{}}`)), refused: refusedMac},
		{name: "no entries", who: oncall, object: mac, patch: `{"metadata":{"managedFields":[{}]}}`, refused: refusedMac},
		{name: "cordons what others apply", who: oncall, object: mac, patch: `{"spec":{"unschedulable":true}}`},
		{name: "a replica's status", who: oncall, object: replica, patch: with(replica, has("metalfleet-operator", "Apply", "status", `{"f:status":{"f:epoch":{}}}`)), refused: refusedReplica},
		{name: "a replica's spec", who: oncall, object: replica, patch: with(replica, has("metalfleet-placement", "Apply", "", `{"f:spec":{"f:desired":{}}}`)), refused: refusedReplica},
		{name: "a co-owner of a replica's spec", who: oncall, object: replica, patch: with(replica, has("x", "Update", "", `{"f:spec":{"f:prefetchNodeName":{}}}`)), refused: refusedReplica},
		{name: "other annotations", who: oncall, object: replica, patch: with(replica, has("metalfleet-placement", "Apply", "", `{"f:metadata":{"f:annotations":{"f:a":{}}}}`)), refused: refusedReplica},
		{name: "evicts", who: oncall, object: replica, patch: `{"metadata":{"annotations":{"metalfleet.dev/evict":"true"}}}`},
		{name: "an administrator", who: fleet, object: mac, patch: with(mac, has("x", "Apply", "status", boot))},
	})
	must(oncall, "x", `{"apiVersion":"`+version+`","kind":"MacNode","metadata":{"name":"fields"},"spec":{"unschedulable":false}}`)
	must(oncall, "x", `{"apiVersion":"`+version+`","kind":"MacNode","metadata":{"name":"fields"}}`)
	must(fleet, "gitops", fmt.Sprintf(applied, true))
}

// TestAPersonLeavesFieldManagersToOthers: an object has at most 32. Without one, placement could not bind a replica.
func TestAPersonLeavesFieldManagersToOthers(t *testing.T) {
	const version = "metalfleet.dev/v1alpha1"
	const studio = "{apiVersion: " + version + ", kind: MacNode, metadata: {name: managers}}"
	w := newWorld(t)
	waiting := strings.Replace(replica, "nodeName", "prefetchNodeName", 1)
	for user, o := range map[string]string{root: studio, operator: waiting} {
		made := object(t, o)
		if err := w.as(user).Create(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.as(root).Delete(context.Background(), made); err != nil {
				t.Error(err)
			}
		})
	}
	apply := func(user, manager, o, body string) error {
		return w.as(user).Patch(t.Context(), object(t, o), client.RawPatch(types.ApplyPatchType, []byte(body)), client.FieldOwner(manager))
	}
	ofMac := `{"apiVersion":"` + version + `","kind":"MacNode","metadata":{"name":"managers"%s}%s}`
	ofReplica := `{"apiVersion":"` + version + `","kind":"ModelReplica","metadata":{"name":"r","namespace":"tenant"%s}%s}`
	cordons, evicts := fmt.Sprintf(ofMac, "", `,"spec":{"unschedulable":true}`), fmt.Sprintf(ofReplica, `,"annotations":{"metalfleet.dev/evict":""}`, "")
	for _, o := range []struct{ object, body string }{{studio, cordons}, {waiting, evicts}} {
		n, err := 0, error(nil)
		for ; n < 40 && err == nil; n++ {
			err = apply(oncall, fmt.Sprint("m", n), o.object, o.body)
		}
		if err == nil || !strings.Contains(err.Error(), "16 field managers") {
			t.Errorf("after %d field managers: %v", n, err)
		}
		if err := apply(oncall, "m0", o.object, o.body); err != nil {
			t.Errorf("again with the same field manager: %v", err)
		}
	}
	if err := apply(operator, "metalfleet-placement", waiting, fmt.Sprintf(ofReplica, "", `,"spec":{"nodeName":"studio"}`)); err != nil {
		t.Errorf("placement binds the replica: %v", err)
	}
	if err := apply(fleet, "gitops", studio, fmt.Sprintf(ofMac, `,"annotations":{"metalfleet.dev/lost":"true"}`, "")); err != nil {
		t.Errorf("an administrator reports the Mac lost: %v", err)
	}
	w.play([]attempt{{name: "uncordons with another field manager", who: oncall, object: studio, patch: `{"spec":{"unschedulable":false}}`}})
}

// TestScalingAddsFewFieldManagers: each that applies a number of replicas adds an entry to the managedFields, which the
// API server writes with each status. No policy sees their number there.
func TestScalingAddsFewFieldManagers(t *testing.T) {
	w := newWorld(t)
	mine := deployment("scaled", "hf://org/model", ", servedNames: [tenant/scaled]")
	made := object(t, mine)
	if err := w.as(mallory).Create(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.as(root).Delete(context.Background(), made); err != nil {
			t.Error(err)
		}
	})
	scale := func(as types.PatchType, body string, o ...client.SubResourcePatchOption) error {
		return w.as(mallory).SubResource("scale").Patch(t.Context(), object(t, mine), client.RawPatch(as, []byte(body)), o...)
	}
	const applied = `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"scaled"},"spec":{"replicas":1}}`
	w.eventually(func() error {
		if err := scale(types.ApplyPatchType, applied, client.FieldOwner("one-of-many"), client.ForceOwnership); err == nil || !strings.Contains(err.Error(), "--field-manager") {
			return fmt.Errorf("one of many field managers: %v", err)
		}
		return nil
	})
	if err := scale(types.ApplyPatchType, applied, client.FieldOwner("kubectl")); err != nil {
		t.Errorf("applied by kubectl: %v", err)
	}
	for _, manager := range []string{"", "kubectl-patch"} { // an autoscaler has none
		if err := scale(types.MergePatchType, `{"spec":{"replicas":2}}`, client.FieldOwner(manager)); err != nil {
			t.Errorf("scaled by %q: %v", manager, err)
		}
	}
	w.play([]attempt{{name: "an edit", who: mallory, object: mine, patch: `{"spec":{"rollout":{"retryGeneration":1}}}`}})
}
