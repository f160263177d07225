package controllers

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestTheCacheKeepsNoUnboundedMetadata: of each kind that the operator reads. The API server or a policy bounds what is kept.
func TestTheCacheKeepsNoUnboundedMetadata(t *testing.T) {
	bounded := []string{"Name", "Namespace", "UID", "ResourceVersion", "Generation", "CreationTimestamp", "DeletionTimestamp", "DeletionGracePeriodSeconds",
		"Labels", "Annotations", "OwnerReferences", "Finalizers",
		"SelfLink"} // which the API server does not store
	o := cacheOptions("s", nil)
	kinds := []client.Object{&v1alpha1.MacNode{}, &v1alpha1.MacClass{}, &v1alpha1.ModelProfile{}, &v1alpha1.NamespaceRules{}}
	for kind := range o.ByObject {
		kinds = append(kinds, kind)
	}
	for _, kind := range kinds {
		transform := o.ByObject[kind].Transform
		if transform == nil {
			transform = o.DefaultTransform
		}
		meta := reflect.ValueOf(kind).Elem().FieldByName("ObjectMeta")
		meta.Set(reflect.ValueOf(metav1.ObjectMeta{Name: "n", GenerateName: "g", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}, Labels: map[string]string{"l": "v"}}))
		for i := range meta.NumField() {
			if f := meta.Field(i); f.Kind() == reflect.String {
				f.SetString("x")
			}
		}
		if _, err := transform(kind); err != nil {
			t.Fatal(err)
		}
		for i := range meta.NumField() {
			if name := meta.Type().Field(i).Name; !meta.Field(i).IsZero() && !slices.Contains(bounded, name) {
				t.Errorf("the cache keeps %s of a %T", name, kind)
			}
		}
	}
}

// TestTheCacheKeepsWhichAgentOrOperatorWroteAMac: identity counts the versions that Macs cause. client-go may transform an object twice.
func TestTheCacheKeepsWhichAgentOrOperatorWroteAMac(t *testing.T) {
	for _, manager := range []string{v1alpha1.ManagerAgent, v1alpha1.ManagerOperator, v1alpha1.ManagerUpgrades, v1alpha1.ManagerClasses, strings.Repeat("x", 64<<10)} {
		mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
			{Manager: "first", Time: &metav1.Time{Time: time.Unix(1, 0)}},
			{Manager: manager, Time: &metav1.Time{Time: time.Unix(3, 0)}},
			{Manager: "second", Time: &metav1.Time{Time: time.Unix(2, 0)}},
		}}}
		for range 2 {
			if _, err := bare(mac); err != nil {
				t.Fatal(err)
			}
		}
		want := []metav1.ManagedFieldsEntry{{Manager: manager}}
		if len(manager) > 100 {
			want = nil
		}
		if got := mac.ManagedFields; !reflect.DeepEqual(got, want) {
			t.Errorf("the cache keeps %+v, want %+v", got, want)
		}
	}
}

// TestOfTheAnnotationsOfAMacTheCacheKeepsThoseThatAreRead: who administers Macs may write any, of 128 KiB each.
func TestOfTheAnnotationsOfAMacTheCacheKeepsThoseThatAreRead(t *testing.T) {
	long := strings.Repeat("x", 64<<10)
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		v1alpha1.AnnotationLost: "true", v1alpha1.AnnotationEnrolledKey: long, "metalfleet.dev/other": "x", "other": long,
	}}}
	bared := func() map[string]string {
		if _, err := bare(mac); err != nil {
			t.Fatal(err)
		}
		return mac.Annotations
	}
	if got := bared(); len(got) != 1 || got[v1alpha1.AnnotationLost] != "true" {
		t.Errorf("the cache keeps %d annotations", len(got))
	}
	mac.Annotations = map[string]string{v1alpha1.AnnotationEnrolledKey: "key"}
	if got := bared(); got[v1alpha1.AnnotationEnrolledKey] != "key" {
		t.Errorf("the cache keeps %v", got)
	}
}
