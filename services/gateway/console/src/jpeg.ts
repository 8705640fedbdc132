// The user's own pictures, as the gateway accepts them.

/** The most pixels of the longer side: models use no more. */
const SIDE = 1280;
const QUALITY = 0.9;

/** A picture as a JPEG, at most `SIDE` pixels long. Fails if the browser cannot read the picture. */
export async function asJpeg(file: Blob): Promise<Blob> {
  const picture = await createImageBitmap(file);
  const scale = Math.min(1, SIDE / Math.max(picture.width, picture.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(picture.width * scale));
  canvas.height = Math.max(1, Math.round(picture.height * scale));
  canvas.getContext("2d")!.drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
  return new Promise((resolve, reject) =>
    canvas.toBlob((jpeg) => (jpeg ? resolve(jpeg) : reject(new Error("no picture"))), "image/jpeg", QUALITY),
  );
}
