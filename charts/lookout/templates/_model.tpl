{{/* The model's checkpoint: where it is in a pod and how it gets there. */}}

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

{{/* Downloads the checkpoint, compares its SHA-256 and unpacks it. */}}
{{- define "lookout.modelDownload" -}}
{{- $url := .Values.model.url }}
- name: model
  image: {{ include "lookout.image" (dict "root" . "image" "controller") }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  securityContext: {{- include "lookout.containerSecurity" . | nindent 4 }}
  command: [python, -m, lookout.services.controller.download, --folder, /model]
  env:
    - {name: LOOKOUT_MODEL_SHA256, value: {{ required "model.url.sha256: give the SHA-256 of the file" $url.sha256 | quote }}}
    {{- if $url.addressSecret }}
    - name: LOOKOUT_MODEL_URL
      valueFrom: {secretKeyRef: {name: {{ $url.addressSecret }}, key: url}}
    {{- else }}
    - {name: LOOKOUT_MODEL_URL, value: {{ required "model.url.address: give the address of the checkpoint's archive" $url.address | quote }}}
    {{- end }}
    {{- if $url.caSecret }}
    - {name: SSL_CERT_FILE, value: /etc/lookout/model-ca/ca.crt}
    {{- end }}
  resources: {{- toYaml $url.resources | nindent 4 }}
  volumeMounts:
    - {name: model, mountPath: /model}
    - {name: tmp, mountPath: /tmp}
    {{- if $url.caSecret }}
    - {name: model-ca, mountPath: /etc/lookout/model-ca, readOnly: true}
    {{- end }}
{{- end }}
