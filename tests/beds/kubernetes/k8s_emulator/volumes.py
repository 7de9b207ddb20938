"""Volumes as folders."""

import base64
import shutil


class MountError(Exception):
    """A volume can not be set up yet, in the words of a kubelet."""


class Volumes:
    """Makes the folders of pods under `folder`; claims keep theirs."""

    def __init__(self, store, folder):
        self.store = store
        self.folder = folder

    def set_up(self, pod):
        """Every volume's folder by its name; raises `MountError` for the first that can not be."""
        namespace = pod["metadata"]["namespace"]
        base = self.folder / "pods" / pod["metadata"]["uid"] / "volumes"
        return {
            volume["name"]: self._folder(volume, base / volume["name"], namespace)
            for volume in pod["spec"].get("volumes", [])
        }

    def claim(self, namespace, name):
        """The folder behind a claim."""
        folder = self.folder / "claims" / namespace / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder

    def tear_down(self, uid):
        shutil.rmtree(self.folder / "pods" / uid, ignore_errors=True)

    def _folder(self, volume, folder, namespace):
        if "persistentVolumeClaim" in volume:
            name = volume["persistentVolumeClaim"]["claimName"]
            if self.store.get("persistentvolumeclaims", namespace, name) is None:
                raise MountError(f'persistentvolumeclaim "{name}" not found')
            return self.claim(namespace, name)
        folder.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            self._write(volume["name"], volume["configMap"], folder, namespace)
        elif "projected" in volume:
            for source in volume["projected"].get("sources", []):
                if "configMap" in source:
                    self._write(volume["name"], source["configMap"], folder, namespace)
        else:
            folder.chmod(0o777)
        return folder

    def _write(self, volume, source, folder, namespace):
        found = self.store.get("configmaps", namespace, source["name"])
        if found is None:
            if source.get("optional"):
                return
            raise MountError(f'MountVolume.SetUp failed for volume "{volume}" : configmap "{source["name"]}" not found')
        contents = {name: text.encode() for name, text in (found.get("data") or {}).items()}
        contents |= {name: base64.b64decode(text) for name, text in (found.get("binaryData") or {}).items()}
        wanted = {item["key"]: item["path"] for item in source.get("items", [])} or {name: name for name in contents}
        for key, path in wanted.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(contents[key])
            (folder / path).chmod(0o444)
