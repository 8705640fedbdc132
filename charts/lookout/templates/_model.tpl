{{/* The model's checkpoint: its place in a pod, and how it gets there. */}}

{{- define "lookout.modelEnv" -}}
{{- $model := .Values.model }}
{{- $folder := "/model" }}
{{- if eq $model.source "bundled" }}{{ $folder = "/opt/lookout/lib/python3.11/site-packages/lookout/models/tiny" }}
{{- else if eq $model.source "volume" }}{{ $folder = printf "/model/%s" $model.volume.path | trimSuffix "/" }}
{{- else if eq $model.source "image" }}{{ $folder = printf "/model/%s" $model.image.path | trimSuffix "/" }}
{{- end }}
- {name: LOOKOUT_MODEL_DIR, value: {{ $folder | quote }}}
{{- with $model.digest }}
- {name: LOOKOUT_MODEL_DIGEST, value: {{ . | quote }}}
{{- end }}
{{- end }}

{{- define "lookout.modelMounts" -}}
{{- if ne .Values.model.source "bundled" }}
- {name: model, mountPath: /model, readOnly: true}
{{- end }}
{{- end }}

{{- define "lookout.modelVolumes" -}}
{{- $model := .Values.model }}
{{- if eq $model.source "volume" }}
- name: model
  persistentVolumeClaim: {claimName: {{ required "model.volume.claim: name the claim that holds the checkpoint" $model.volume.claim }}, readOnly: true}
{{- else if eq $model.source "image" }}
- name: model
  image: {reference: {{ required "model.image.reference: name the image that holds the checkpoint" $model.image.reference | quote }}, pullPolicy: IfNotPresent}
{{- else if eq $model.source "url" }}
- {name: model, emptyDir: {sizeLimit: {{ $model.url.size }}}}
{{- if $model.url.caSecret }}
- name: model-ca
  secret: {secretName: {{ $model.url.caSecret }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end }}

{{/*
Downloads the checkpoint, compares its SHA-256 and unpacks it; call with (dict "root" $ "part" values
"tower" whether tower and projector are all that the pod needs of it "texts" whether configuration and tokenizer are).
*/}}
{{- define "lookout.modelDownload" -}}
{{- $url := .root.Values.model.url }}
{{- $caSecret := $url.caSecret }}
{{- /* Lets the scheduler count the disk space that the checkpoint may take on the node. */}}
{{- $resources := deepCopy $url.resources }}
{{- $_ := set $resources "requests" (merge (dict) ($resources.requests | default dict) (dict "ephemeral-storage" $url.size)) }}
{{- $key := "model.url" }}
{{- if and .tower $url.vision.sha256 }}
{{- $url = $url.vision }}
{{- $key = "model.url.vision" }}
{{- end }}
- name: model
  image: {{ include "lookout.image" (dict "root" .root "image" "controller") }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  securityContext: {{- include "lookout.containerSecurity" .root | nindent 4 }}
  command: [python, -m, lookout.services.controller.download, --folder, /model{{ if .texts }}, --without-weights{{ end }}]
  env:
    - {name: LOOKOUT_MODEL_SHA256, value: {{ required (printf "%s.sha256: give the SHA-256 of the file" $key) $url.sha256 | quote }}}
    {{- if $url.addressSecret }}
    - name: LOOKOUT_MODEL_URL
      valueFrom: {secretKeyRef: {name: {{ $url.addressSecret }}, key: url}}
    {{- else }}
    - {name: LOOKOUT_MODEL_URL, value: {{ required (printf "%s.address: give the address of the archive" $key) $url.address | quote }}}
    {{- end }}
    {{- if $caSecret }}
    - {name: SSL_CERT_FILE, value: /etc/lookout/model-ca/ca.crt}
    {{- end }}
    {{- with include "lookout.podAddition" (dict "root" .root "part" .part "name" "extraEnv") }}{{ . | nindent 4 }}{{ end }}
  resources: {{- toYaml $resources | nindent 4 }}
  volumeMounts:
    - {name: model, mountPath: /model}
    - {name: tmp, mountPath: /tmp}
    {{- with include "lookout.podAddition" (dict "root" .root "part" .part "name" "extraVolumeMounts") }}{{ . | nindent 4 }}{{ end }}
    {{- if $caSecret }}
    - {name: model-ca, mountPath: /etc/lookout/model-ca, readOnly: true}
    {{- end }}
{{- end }}
